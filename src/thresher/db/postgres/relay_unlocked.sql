-- What a sweeper's head asks for besides: rows that a dispatcher has locked are being sent. A row is locked or marked
-- before it is sent, and whoever comes second sees it.
 FOR NO KEY UPDATE OF i SKIP LOCKED
