"""Publishes rows to Kafka in transactions, each with a progress record. Every pipeline that publishes uses it."""
