"""The parts of `bench/tail.py`."""
