-- A manifest, with create times as files have them: in microseconds since 1970. Index: the primary key.
SELECT directory, directory_id, stem, attempt, ids,
       ARRAY(SELECT (extract(epoch FROM greatest('0001-01-02', least('9999-12-30', t))) * 1000000)::bigint
               FROM unnest(create_times) WITH ORDINALITY AS w(t, place) ORDER BY place)
  FROM {batches}
 WHERE batch = %s AND finish_time IS NULL
