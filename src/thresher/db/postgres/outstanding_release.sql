-- After a count: nothing of it is left in the caller's transaction.
RELEASE SAVEPOINT thresher_outstanding
