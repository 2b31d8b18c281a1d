-- Locks the notes of missing topics, and counts those that are as they were when the rows were read: the topic has no
-- slot, and no group was founded since. Index: topic. Fences: the notes' tokens, and the control row's term. Registering
-- a topic waits for the note's row.
SELECT count(*)
  FROM (SELECT l.topic FROM {locks} l
          JOIN unnest(%(topics)s::text[], %(tokens)s::bigint[]) AS n(topic, token)
            ON n.topic = l.topic AND n.token = l.token
         WHERE l.slot IS NULL AND l.parts = 1
           AND EXISTS (SELECT FROM {control} c WHERE c.name = %(relay)s AND c.term = %(term)s::uuid)
         ORDER BY l.topic
           FOR UPDATE OF l) f
