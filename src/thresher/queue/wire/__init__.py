"""The queues' wire format: what markers and messages look like on Kafka."""
