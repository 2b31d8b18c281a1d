-- Removes set-aside rows for good; what they block goes on. Parameters: topic, kind and ids, or NULL for all. By what was
-- asked for, not by ids that were found: another row may have had the same one. Index: the primary key.
DELETE FROM {dead} d
 WHERE (%(topic)s::text IS NULL OR d.kafka_topic = %(topic)s)
   AND (%(kind)s::text IS NULL OR d.kind = %(kind)s)
   AND (%(ids)s::bigint[] IS NULL OR d.id = ANY (%(ids)s))
