"""Who leads: one of the processes that compete for a relay, by a Kafka consumer group or by a row in the database."""
