"""The tail: committed changes of Postgres' log become Kafka records, once and in the order of commits."""
