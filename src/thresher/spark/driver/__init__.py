"""The driver's side: runs one Spark job per shard, supervises it and serves its line."""
