"""The parts of `bench/tracker.py`."""
