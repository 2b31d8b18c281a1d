-- Lets writers of a table wait until this transaction ends, and waits for those that have written to it.
LOCK TABLE {table} IN SHARE MODE
