"""Replication: the connection over which a slot's changes are read, and the management of slots and publications."""
