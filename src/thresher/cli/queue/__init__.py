"""`thresher queue`: message queues on Kafka, from a shell."""
