"""The relay as its users meet it: configuration, election, engine and relay wired together, with one life cycle."""
