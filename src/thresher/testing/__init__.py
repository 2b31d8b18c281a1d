"""For tests and trials: a load generator, the history it records, and pytest fixtures."""
