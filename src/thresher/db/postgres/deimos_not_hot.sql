-- Which rows of the head are not of a key that is left out: one of which the shard has enough, or one that waits. A key is
-- what a row is ordered by: its partition key, else its key.
(coalesce(convert_to(i.partition_key, 'UTF8'), i.key) IS NULL
        OR (i.topic, coalesce(convert_to(i.partition_key, 'UTF8'), i.key)) NOT IN
         (SELECT h.topic, h.key FROM unnest(%(hot_topics)s::text[], %(hot_keys)s::bytea[]) AS h(topic, key)))
