"""The worker's side: a Spark task that runs a shard's functions and keeps its line to the driver."""
