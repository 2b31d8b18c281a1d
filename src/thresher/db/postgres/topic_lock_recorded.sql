-- Into how many parts a topic is split; nothing if it was never locked. Index: topic.
SELECT parts FROM {locks} WHERE topic = %(topic)s AND (slot IS NOT NULL OR parts > 1)
