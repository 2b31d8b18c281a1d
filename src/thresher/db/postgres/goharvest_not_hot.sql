-- Which rows of the head are not of a key that is left out: one of which the shard has enough, or one that waits.
(i.kafka_key IS NULL OR (i.kafka_topic, convert_to(i.kafka_key, 'UTF8')) NOT IN
         (SELECT h.topic, h.key FROM unnest(%(hot_topics)s::text[], %(hot_keys)s::bytea[]) AS h(topic, key)))
