"""The worker's side of a relay: one attempt at one shard."""
