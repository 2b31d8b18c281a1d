"""A relay's part of the status page, its metrics and its backlog."""
