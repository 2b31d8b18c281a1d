"""The Spark session that an engine runs on: its settings, its JVM, its opening and its closing."""
