-- Rolls back to the savepoint after a count that failed: the caller's transaction is as it was before.
ROLLBACK TO SAVEPOINT thresher_outstanding
