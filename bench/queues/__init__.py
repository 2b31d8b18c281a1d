"""The programs that the queue bench compares, each in its own process."""
