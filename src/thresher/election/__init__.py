"""One leader among the processes that compete for a pipeline, by a Kafka consumer group or by a row in the database."""
