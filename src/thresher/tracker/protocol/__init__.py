"""The tracker's logic without servers: its clock, the messages in progress, its decisions and transactions."""
