"""The hand-off: from records of the message topic to messages that are started, and only then delivered."""
