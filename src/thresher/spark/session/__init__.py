"""The Spark that an engine runs on: its settings, its JVM and its life."""
