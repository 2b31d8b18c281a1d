-- One moment for all that a verification looks at: a row that moves meanwhile is seen in one place, and in one only.
-- The first statement of its transaction. Takes no lock that a relay could wait for.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
