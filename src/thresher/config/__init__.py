"""Configuration of any part: YAML, environment, secrets, one report; flags and docs are made from the form."""
