"""The driver of a tail: takes over the outbox, watches it, reports."""
