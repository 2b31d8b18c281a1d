"""The driver's side of the engine: it starts a job for each shard, supervises it and hears its line."""
