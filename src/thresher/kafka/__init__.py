"""Kafka's client with typed results and errors: a transactional producer, readers, offsets, administration."""
