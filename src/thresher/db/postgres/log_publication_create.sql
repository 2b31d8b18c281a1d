-- Publishes the inserts into one table, and nothing else of it.
CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = 'insert')
