"""What `bench/relay.py` measures, one part a module."""
