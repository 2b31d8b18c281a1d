"""Reads a shard's pending rows, and decides which are read next."""
