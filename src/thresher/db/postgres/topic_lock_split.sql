-- Records another number of parts for a topic in all of its rows. The caller holds all of the topic's locks: a process
-- that waits for one of them finds the new number in it.
UPDATE {locks} SET parts = %(parts)s WHERE topic = %(topic)s OR pg_catalog.starts_with(topic, %(topic)s || '#')
