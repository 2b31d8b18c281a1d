"""A capture's part of the status page and the metrics."""
