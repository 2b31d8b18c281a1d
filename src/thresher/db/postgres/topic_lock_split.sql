-- Records another split of a topic with all of its rows. Its locks are held by whoever does this: whoever waits for one of
-- them finds the new number in it.
UPDATE {locks} SET parts = %(parts)s WHERE topic = %(topic)s OR pg_catalog.starts_with(topic, %(topic)s || '#')
