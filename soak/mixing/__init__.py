"""The parts that random soaks share."""
