"""The relay: carries the rows of an outbox to Kafka, once, in order per key, through Spark."""
