"""The servers that a process needs: whether they answer, and what the log says of those that do not."""
