-- Removes the marks of rows that their leader will not send. Index: the primary key. Fences: the mark must be ours, and
-- the control row, locked until this has committed, must have our term. A leader that was stopped and superseded resets
-- nothing.
UPDATE {table} o
   SET {mark} = NULL
 WHERE o.id = ANY (%(ids)s)
   AND o.{mark} = {leader}
   AND EXISTS (SELECT FROM {control} c WHERE c.name = %(name)s AND c.term = %(term)s::uuid FOR SHARE)
