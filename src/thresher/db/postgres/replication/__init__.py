"""Replication: the connection over which a slot's changes are read, and the slots and publications themselves."""
