"""Event state capture: the application publishes first, and a pipeline writes the entity to the database."""
