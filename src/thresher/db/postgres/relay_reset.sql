-- Takes the marks off rows that will not be sent by who marked them. Index: the primary key. Fences: the mark is ours, and
-- the control row, locked until this has committed, has our term: a leader that was stopped and superseded resets nothing.
UPDATE {table} o
   SET {mark} = NULL
 WHERE o.id = ANY (%(ids)s)
   AND o.{mark} = {leader}
   AND EXISTS (SELECT FROM {control} c WHERE c.name = %(name)s AND c.term = %(term)s::uuid FOR SHARE)
