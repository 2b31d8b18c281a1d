"""Sending: the producer of a queue, the future of one send, and the one client that all queues share."""
