-- Makes writers of a table wait until this transaction ends, and waits for open transactions that have written to it.
LOCK TABLE {table} IN SHARE MODE
