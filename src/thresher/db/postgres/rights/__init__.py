"""The rights of roles that are not the owner of the tables: policies and functions."""
