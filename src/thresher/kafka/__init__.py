"""Kafka's client behind typed answers: a transactional producer, readers, offsets, administration."""
