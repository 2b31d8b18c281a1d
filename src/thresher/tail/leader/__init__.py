"""The driver of a tail: takes over, watches, reports."""
