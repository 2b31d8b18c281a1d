-- The condition for rows whose key is wanted. Left out are keys of which the shard has enough rows, and keys that wait.
(i.kafka_key IS NULL OR (i.kafka_topic, i.kafka_key) NOT IN
         (SELECT h.topic, h.key FROM unnest(%(hot_topics)s::text[], %(hot_keys)s::bytea[]) AS h(topic, key)))
