-- Into how many parts each topic is split. The row of a part has a name that no topic can have.
SELECT topic, parts FROM {locks} WHERE pg_catalog.strpos(topic, '#') = 0 AND (slot IS NOT NULL OR parts > 1)
