-- Which rows of the head are not claimed: those that the shard does not have in flight, by id and create time. An id that
-- came back (TRUNCATE … RESTART IDENTITY, a restored backup) has another create time, and its row is read. In a hash,
-- whatever their number. Create times are microseconds since 1970, within the years that a read gives; in two parts, since
-- an interval is multiplied by a double, which is exact up to 2^53 only.
(i.id, greatest('0001-01-02', least('9999-12-30', {created}))) NOT IN
         (SELECT f.id, 'epoch'::timestamptz + (f.create_time / 1000000) * interval '1 second'
                       + (f.create_time %% 1000000) * interval '1 microsecond'
            FROM unnest(%(in_flight_ids)s::bigint[], %(in_flight_times)s::bigint[]) AS f(id, create_time))
