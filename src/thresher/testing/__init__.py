"""Tools for tests: a load generator, the history that it records, a checker of that history, and a Kafka proxy."""
