"""The database side of capture: stored offsets, dead records, and the tables of entities."""
