"""The two guarantees as generators of effects: no input and no output."""
