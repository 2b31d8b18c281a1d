"""The hand-off: turns records of the message topic into started messages, and delivers only those."""
