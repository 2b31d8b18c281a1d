"""Runs a real Postgres and a real Kafka broker, on a developer's machine, in CI and in the demo."""
