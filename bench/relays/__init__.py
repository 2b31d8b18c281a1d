"""The parts of `bench/relay.py`."""
