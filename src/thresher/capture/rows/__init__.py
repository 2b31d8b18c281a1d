"""From records to rows: mapping, types and guards. Pure."""
