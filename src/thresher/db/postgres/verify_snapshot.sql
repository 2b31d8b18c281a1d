-- One snapshot for everything that a verification reads: a row that moves meanwhile is seen in exactly one place. It is
-- the first statement of its transaction. Takes no lock that a relay could wait for.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
