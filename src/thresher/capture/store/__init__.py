"""What capture has in the database: stored offsets, dead records, and the tables of entities."""
