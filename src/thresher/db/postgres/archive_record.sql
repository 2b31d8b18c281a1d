-- Records a directory as the one at its path, as a finished batch without rows and without a file.
INSERT INTO {batches} (outbox, directory, directory_id, stem, ids, create_times, versions, finish_time, row_count)
VALUES (%(outbox)s, %(directory)s, %(directory_id)s, %(stem)s, '{}', '{}', '{}', pg_catalog.clock_timestamp(), 0)
