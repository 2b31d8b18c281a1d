-- The lock clause of a sweeper's head: rows that a dispatcher has locked are being sent, and are skipped. Every sender
-- locks or marks a row before it sends it, so the second sender sees that.
 FOR NO KEY UPDATE OF i SKIP LOCKED
