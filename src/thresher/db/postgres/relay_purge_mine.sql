-- The condition that a purge adds to a settlement: the rows still carry the mark under which they were sent.
   AND o.{mark} = {leader}
