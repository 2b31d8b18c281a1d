-- Frees all locks and fences their holders: a relay has taken over, and settles what the holders left unfinished.
UPDATE {locks} SET token = token + 1, locked_by = NULL, locked_at = NULL, error = false
