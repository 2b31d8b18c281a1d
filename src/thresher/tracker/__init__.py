"""The redelivery tracker: messages that were started and not ended come back to their queue."""
