"""The redelivery tracker: returns messages that were started and not ended to their queue."""
