-- The condition for rows that the shard does not have in flight, by id and create time. A reused id (TRUNCATE … RESTART
-- IDENTITY, a restored backup) has another create time, so its row is read. NOT IN makes the planner hash the list,
-- whatever its length. Create times are in microseconds since 1970, clamped to the years that a read returns. Each is
-- added in two parts, because an interval is multiplied by a double, which is exact only up to 2^53.
(i.id, greatest('0001-01-02', least('9999-12-30', {created}))) NOT IN
         (SELECT f.id, 'epoch'::timestamptz + (f.create_time / 1000000) * interval '1 second'
                       + (f.create_time %% 1000000) * interval '1 microsecond'
            FROM unnest(%(in_flight_ids)s::bigint[], %(in_flight_times)s::bigint[]) AS f(id, create_time))
