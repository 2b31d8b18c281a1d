"""Thin wrappers of the Kafka client."""
