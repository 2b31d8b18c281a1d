"""Values, outcomes and errors that every other part shares; the standard library only."""
