-- Whether any row of an entity's table has a guard: another topic or another capture wrote it. If no row has one, the
-- whole table is scanned. Runs once, before a topic is captured for the first time.
SELECT 1 FROM {table} WHERE {offset} IS NOT NULL LIMIT 1
