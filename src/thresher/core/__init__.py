"""Values, errors, clock, secrets and signals that every other part shares. Imports the standard library only."""
