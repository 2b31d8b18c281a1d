"""The sides of the bench of queues, each for a process of its own."""
