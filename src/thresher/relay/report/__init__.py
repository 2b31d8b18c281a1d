"""What a relay shows: status page, metrics and backlog."""
