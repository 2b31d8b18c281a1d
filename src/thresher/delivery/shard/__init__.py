"""One attempt at one shard: what every pipeline that publishes rows does in its worker."""
