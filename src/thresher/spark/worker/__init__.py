"""The worker's side of the engine: a task that runs a shard's chain and answers to the driver."""
