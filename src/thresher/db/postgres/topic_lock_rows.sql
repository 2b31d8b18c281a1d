-- The oldest pending rows of several topics, `rows` in all. `{head}` is the head of one topic, `n.topic`; index: its own.
-- No fence: the rows are set aside under that of topic_lock_noted.
SELECT h.* FROM unnest(%(topics)s::text[]) AS n(topic) CROSS JOIN LATERAL (
{head}
       ) h
 LIMIT %(rows)s
