"""The wire format of queues: markers, messages and dead letters on Kafka."""
