"""`thresher capture`: writes the records of Kafka topics to database tables."""

from thresher.cli.capture.app import app

__all__ = ["app"]
