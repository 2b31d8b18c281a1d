"""The tail: committed changes of Postgres' WAL become Kafka records, once and in the order of commits."""
