-- Deletes the rows of a table that were all published from the WAL: a relay would send them again.
DELETE FROM {table} o WHERE true{unstamped}
