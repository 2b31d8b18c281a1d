-- The condition for rows whose key is wanted. Left out are keys of which the shard has enough rows, and keys that wait.
-- A row's key here is its partition key, or its key if the partition key is NULL.
(coalesce(convert_to(i.partition_key, 'UTF8'), i.key) IS NULL
        OR (i.topic, coalesce(convert_to(i.partition_key, 'UTF8'), i.key)) NOT IN
         (SELECT h.topic, h.key FROM unnest(%(hot_topics)s::text[], %(hot_keys)s::bytea[]) AS h(topic, key)))
