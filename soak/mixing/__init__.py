"""What random soaks share."""
