-- Adds a key, with which messages are sealed from the next statement on. The server draws it, so that no log of
-- statements has it. What older keys have sealed can be read as long as those are there.
INSERT INTO {keys} (inner_pad, outer_pad)
SELECT pg_catalog.string_agg(pg_catalog.set_byte('\x00'::bytea, 0, pg_catalog.get_byte(d.drawn, n.n) # 54), ''::bytea ORDER BY n.n),
       pg_catalog.string_agg(pg_catalog.set_byte('\x00'::bytea, 0, pg_catalog.get_byte(d.drawn, n.n) # 92), ''::bytea ORDER BY n.n)
  FROM (SELECT pg_catalog.string_agg(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), ''::bytea) AS drawn
          FROM pg_catalog.generate_series(1, 5)) d
 CROSS JOIN pg_catalog.generate_series(0, 63) n (n)
RETURNING id
