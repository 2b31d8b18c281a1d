-- What a purge asks for beside what settling does: the rows still carry the mark under which they were sent.
   AND o.{mark} = {leader}
