"""How benches measure: where, in which order, and how the figures are told."""
