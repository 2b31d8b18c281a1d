"""Rows to Kafka in transactions with a progress record: what every pipeline that publishes shares."""
