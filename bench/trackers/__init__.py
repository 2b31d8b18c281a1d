"""What `bench/tracker.py` measures with."""
