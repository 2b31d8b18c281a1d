"""The driver's side of a relay: take-over, watch and alarms."""
