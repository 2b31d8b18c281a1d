-- Before a count in the caller's transaction: if it fails, the rest stays.
SAVEPOINT thresher_outstanding
