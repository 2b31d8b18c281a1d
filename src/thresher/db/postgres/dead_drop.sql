-- Removes set-aside rows for good; what they block goes on. Parameters: those of dead_chosen. By what was asked for, not by
-- ids that were found: another row may have had the same one.
DELETE FROM {dead} d
 WHERE {chosen}
