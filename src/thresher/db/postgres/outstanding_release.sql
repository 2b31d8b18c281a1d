-- Ends the savepoint after a count: nothing of the count is left in the caller's transaction.
RELEASE SAVEPOINT thresher_outstanding
