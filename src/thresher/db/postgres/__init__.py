"""Postgres: the adapter of `db.outbox_store`, with each of its statements in a .sql file."""
