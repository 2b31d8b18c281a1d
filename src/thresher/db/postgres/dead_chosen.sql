-- The condition that selects dead rows. Parameters: topic and kind, or NULL for all; ids, or NULL for all. Index: the
-- primary key, if ids are given.
(%(topic)s::text IS NULL OR d.kafka_topic = %(topic)s)
AND (%(kind)s::text IS NULL OR d.kind = %(kind)s)
AND (%(ids)s::bigint[] IS NULL OR d.id = ANY (%(ids)s))
