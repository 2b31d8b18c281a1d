-- Begins a savepoint before a count in the caller's transaction: if the count fails, the rest of the transaction
-- survives.
SAVEPOINT thresher_outstanding
