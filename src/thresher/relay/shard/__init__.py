"""The worker's part of a relay: one attempt at one shard."""
