"""The shard of a tail, in a worker: reads the WAL, publishes, settles."""
