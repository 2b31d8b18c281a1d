"""The shard of a tail, in a worker: reads the log, publishes, settles."""
