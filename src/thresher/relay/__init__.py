"""The relay: publishes the rows of an outbox to Kafka, once and in order per key, in Spark tasks."""
