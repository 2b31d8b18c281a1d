"""A consumer group, seen from outside: its membership, its committed offsets, and moving it over a batch."""
