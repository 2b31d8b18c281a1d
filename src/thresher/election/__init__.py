"""Elects one leader among the processes of a pipeline, by a Kafka consumer group or by a row in the database."""
