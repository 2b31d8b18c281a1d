"""Configuration for any form: YAML, environment, flags, secrets, one report; flags and docs are made from the form."""
