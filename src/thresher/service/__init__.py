"""A process that competes for leadership and runs a pipeline while it leads: relay, tracker, tail or capture."""
