"""A real Postgres and a real Kafka broker on the developer's machine, in CI and in the demo."""
