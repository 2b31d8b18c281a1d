"""The Spark that an engine runs on: its settings, its JVM, and the session from opening to closing."""
