"""The driver's part of a relay: take-over, watch and alarms."""
