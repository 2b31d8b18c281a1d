"""Protocols as generators of effects, without input or output: at-least-once, topic locks, and the progress record."""
