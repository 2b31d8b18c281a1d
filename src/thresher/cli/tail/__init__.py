"""`thresher tail`: publishes the committed changes of Postgres' WAL."""

from thresher.cli.tail.app import app

__all__ = ["app"]
