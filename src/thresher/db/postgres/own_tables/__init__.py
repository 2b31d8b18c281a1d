"""Our own tables in a Postgres schema: making them, their locks, and whose they may be."""
