"""`thresher tail`: publishes the committed changes of Postgres' log."""

from thresher.cli.tail.app import app

__all__ = ["app"]
