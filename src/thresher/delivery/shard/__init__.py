"""Parts of one attempt at one shard, in a worker, that all publishing pipelines share."""
