-- The number of parts of each topic. The name of a part's row contains '#', which no topic can.
SELECT topic, parts FROM {locks} WHERE pg_catalog.strpos(topic, '#') = 0 AND (slot IS NOT NULL OR parts > 1)
