"""What `bench/tail.py` measures, one part a module."""
