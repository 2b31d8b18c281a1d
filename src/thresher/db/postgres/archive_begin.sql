-- Writes the manifest of a batch from the rows that are due. Index: as in archive_due. No row is returned if none is
-- due.
WITH due AS (
{due}
)
INSERT INTO {batches} (outbox, directory, directory_id, stem, ids, create_times, versions)
SELECT %(outbox)s, %(directory)s, %(directory_id)s, %(stem)s || '-' || min(id),
       array_agg(id ORDER BY id), array_agg(create_time ORDER BY id), array_agg(version ORDER BY id)
  FROM due
HAVING count(*) > 0
RETURNING batch
