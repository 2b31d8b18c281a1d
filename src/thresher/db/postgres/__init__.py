"""Postgres: the adapter behind `db.outbox_store`, and every statement that is said to it in its .sql file."""
