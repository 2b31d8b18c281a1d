-- Which rows of the head are not claimed: those that the shard has not marked, and that are not of a key of which it has
-- enough. A mark of anybody else, dead or alive, does not count: who may mark is said by the term.
i.leader_id IS DISTINCT FROM %(leader)s::uuid
   AND (i.kafka_key IS NULL OR (i.kafka_topic, i.kafka_key) NOT IN
         (SELECT h.topic, h.key FROM unnest(%(hot_topics)s::text[], %(hot_keys)s::bytea[]) AS h(topic, key)))
