-- Deletes dead rows for good; rows of a key that they blocked are sent again. Parameters: as in dead_chosen. Selected
-- by the request, not by ids found before: another row may have had the same id.
DELETE FROM {dead} d
 WHERE {chosen}
