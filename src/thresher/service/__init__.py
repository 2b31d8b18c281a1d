"""A process that competes, leads, watches, reports and stops, for any pipeline."""
