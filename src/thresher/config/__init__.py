"""Reads any configuration form from YAML, environment and flags; generates its flags, variables and docs table."""
