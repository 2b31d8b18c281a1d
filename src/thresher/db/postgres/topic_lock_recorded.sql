-- The number of parts that a topic is split into; no row if it was never locked. Index: topic.
SELECT parts FROM {locks} WHERE topic = %(topic)s AND (slot IS NOT NULL OR parts > 1)
