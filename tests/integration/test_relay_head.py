"""Reading pending rows: rows that are too large, bounded reads, windows and buckets, and reused ids."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.relay.reads import arrow_of, ids_of, read
from tests.relay.relaying import Place, tables_created
from tests.set_clock import SetClock
from thresher.core.secrets import revealed
from thresher.db.postgres.arrow_session import ArrowSession
from thresher.db.postgres.sessions import incarnation
from thresher.db.problem import DatabaseLost
from thresher.delivery.reading.prefetch import versions
from thresher.devstack.stack import Stack
from thresher.outbox import Message, Shape
from thresher.outbox.shape import MOST_HEADERS, bucket_of
from thresher.relay.names import buckets_of
from thresher.relay.reading.pending_rows import PendingRows
from thresher.relay.settings import Settings

# The size limit of a row with the client's default limit. The rows with `LARGE` exceed it.
BATCH_BYTES = 1_000_000
LARGE = "repeat('x', 3000000)"
SHARDS = 2


@pytest.fixture(params=[Shape.THRESHER, Shape.GOHARVEST], ids=str)
def place(request: pytest.FixtureRequest, stack: Stack, dsn: str) -> Place:
    return Place(stack, dsn, "none-", shape=request.param, partitions=0)


def heads_of(settings: Settings) -> dict[int, dict[str, Any]]:
    """Read the pending rows of all shards, one row at a time, and return them by id."""
    rows: dict[int, dict[str, Any]] = {}
    seen: dict[int, int] = {}
    with psycopg.connect(revealed(settings.dsn)) as connection:
        since = incarnation(connection, settings.outbox).since
    for shard in range(SHARDS):
        with contextlib.closing(PendingRows(settings, "tests", buckets_of(shard, SHARDS), since)) as head:
            while (found := read(head, 1, BATCH_BYTES, seen)) is not None:
                seen |= versions(found)
                rows |= {row["id"]: row for row in arrow_of(found).to_pylist()}
    return rows


def test_oversized_keys_and_headers_stay_in_the_database(place: Place) -> None:
    settings = tables_created(place.settings(shards=SHARDS, limits={"batch_bytes": BATCH_BYTES}))
    if place.shape is Shape.GOHARVEST:
        # The column was widened by hand.
        place.sql("ALTER TABLE outbox ALTER COLUMN kafka_key TYPE text")
    kind = "bytea" if place.shape is Shape.THRESHER else "text"
    rows = [("'k'", "'{}'", "'{}'"), (LARGE, "'{}'", "'{}'"), ("'k'", "'{a}'", f"ARRAY[{LARGE}]")]
    for key, names, contents in [*rows, ("'k'", f"ARRAY[{LARGE}]", "'{x}'")]:
        place.sql(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
            f" VALUES (now(), 't', {key}::{kind}, {names}::text[], {contents}::{kind}[])"
        )
    found = heads_of(settings)
    parts = [(row["flaw"], row["key"], row["header_keys"], row["header_values"]) for _, row in sorted(found.items())]
    assert parts == [
        (None, b"k", [], []),
        ("too-large", None, [], []),
        ("too-large", b"k", [], []),
        ("too-large", b"k", [], []),
    ]


def test_rows_with_too_many_headers_stay_in_the_database(place: Place) -> None:
    settings = tables_created(place.settings(shards=SHARDS, limits={"batch_bytes": 16 * BATCH_BYTES}))
    kind = "bytea" if place.shape is Shape.THRESHER else "text"
    for names, contents in [
        (MOST_HEADERS, MOST_HEADERS),
        (MOST_HEADERS + 1, 0),
        (0, MOST_HEADERS + 1),
        (0, 30_000_000),
    ]:
        place.sql(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) VALUES "
            f"(now(), 't', 'k', array_fill(''::text, ARRAY[{names}]), array_fill(NULL::{kind}, ARRAY[{contents}]))"
        )
    found = heads_of(settings)
    parts = [(row["flaw"], len(row["header_keys"]), len(row["header_values"])) for _, row in sorted(found.items())]
    assert parts == [
        (None, MOST_HEADERS, MOST_HEADERS),
        ("headers", 0, 0),
        ("headers", 0, 0),
        ("headers", 0, 0),
    ]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def head(stack: Stack, dsn: str, clock: SetClock) -> Iterator[tuple[Place, PendingRows]]:
    """Yield the reader of the only shard of an outbox in our own shape, with a clock that only the test moves."""
    place = Place(stack, dsn, "none-", partitions=0)
    settings = tables_created(place.settings(shards=1, limits={"batch_bytes": BATCH_BYTES}))
    with psycopg.connect(revealed(settings.dsn)) as connection:
        since = incarnation(connection, settings.outbox).since
    with contextlib.closing(PendingRows(settings, "tests", buckets_of(0, 1), since, clock=clock)) as head:
        yield place, head


def test_too_many_headers_are_in_no_read_of_many_rows(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_header_values) SELECT 't', CASE WHEN n > 3 THEN '{}' ELSE "
        "array_fill(NULL::bytea, ARRAY[100000]) END FROM generate_series(1, 600) n"
    )
    seen: dict[int, int] = {}
    while (found := read(reader, 400, 8 * BATCH_BYTES, seen)) is not None:
        seen |= versions(found)
        rows = arrow_of(found)
        assert max(map(len, rows.column("header_values").to_pylist())) == 0
        assert [flaw == "headers" for flaw in rows.column("flaw").to_pylist()] == [id_ <= 3 for id_ in ids_of(found)]
    assert len(seen) == 600


def test_compressible_rows_are_read_by_their_uncompressed_size(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT 't', convert_to('k' || n, 'UTF8'),"
        " convert_to(repeat('x', 10000), 'UTF8') FROM generate_series(1, 3000) n"
    )
    toast = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'outbox'::regclass"
    assert place.sql(toast) == [(0,)]
    seen: dict[int, int] = {}
    while (found := read(reader, 2_000, 8 * BATCH_BYTES, seen)) is not None:
        # A row takes a little more in Arrow than the database counts.
        assert found.nbytes < 9 * BATCH_BYTES
        seen |= versions(found)
    assert len(seen) == 3_000


def test_header_names_count_towards_the_size(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) SELECT 't', 'k',"
        " ARRAY[string_agg(md5(m::text), '')], ARRAY['x'::bytea] FROM generate_series(1, 8) n,"
        " generate_series(1, 20000) m GROUP BY n"
    )
    found = read(reader, 1_000, BATCH_BYTES)
    assert found is not None
    assert len(ids_of(found)) == 1


def test_a_row_too_large_for_a_batch_delays_no_other(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    keys: dict[int, str] = {}
    for number in range(1_000):
        keys.setdefault(bucket_of(f"k{number}".encode()), f"k{number}")
    first, middle, last = (keys[bucket] for bucket in (0, 31, 63))

    def store(key: str, contents: str = "") -> int:
        ((id_,),) = place.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
            " VALUES ('t', convert_to(%s, 'UTF8'), '{a}', ARRAY[convert_to(%s, 'UTF8')]) RETURNING id",
            key,
            contents,
        )
        return int(id_)

    waiting = {store(middle, "".join(map(str, range(300_000)))), store(last)}
    seen: dict[int, int] = {}
    for _ in range(10):
        store(first)
        found = read(reader, 1_000, BATCH_BYTES, seen)
        assert found is not None
        seen |= versions(found)
    assert waiting <= set(seen)


def test_a_new_row_under_an_id_in_flight_is_read(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    place.stash(*(Message(topic="t", key="k", value=str(n)) for n in range(3)))
    old = found_of(reader, {})
    assert set(old) == {1, 2, 3}
    assert read(reader, 1_000, BATCH_BYTES, old) is None
    empty(place)
    place.stash(*(Message(topic="t", key="k", value=str(n)) for n in range(4)))
    # The first three ids now belong to new rows, which precede the fourth.
    new = found_of(reader, old)
    assert list(new) == [1, 2, 3, 4]
    assert read(reader, 1_000, BATCH_BYTES, new) is None


def empty(place: Place) -> None:
    """Delete all rows and restart the ids, in the same table file."""
    place.sql("DELETE FROM outbox")
    place.sql("ALTER SEQUENCE outbox_id_seq RESTART")


@pytest.mark.parametrize("rewrite", ["VACUUM FULL outbox", "TRUNCATE outbox RESTART IDENTITY"])
def test_a_table_with_a_new_file_awaits_recovery(head: tuple[Place, PendingRows], rewrite: str) -> None:
    place, reader = head
    backlog(place, 1_000, "'k' || n %% 300")
    taken = found_of(reader, {})
    place.sql(rewrite)
    backlog(place, 1_000, "'k' || n %% 300")
    with pytest.raises(DatabaseLost, match="recovers first"):
        found_of(reader, taken)


def test_rows_with_any_create_time_can_be_in_flight(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    moments = [f"{year}-01-01 00:00:00.000001+00" for year in (1600, 1900, 2026, 2300, 9000)]
    for moment in ("-infinity", "0044-03-15 12:00:00.123456+00 BC", *moments, "infinity"):
        place.sql("INSERT INTO outbox (create_time, kafka_topic, kafka_key) VALUES (%s, 't', 'k')", moment)
    seen = found_of(reader, {})
    assert len(seen) == 8
    assert read(reader, 1_000, BATCH_BYTES, seen) is None


def backlog(place: Place, rows: int, key: str) -> None:
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
        f" SELECT 't', convert_to({key}, 'UTF8'), 'v' FROM generate_series(1, %s) n",
        rows,
    )


def test_a_long_backlog_is_read_mostly_by_age_in_order(
    head: tuple[Place, PendingRows],
) -> None:
    place, reader = head
    backlog(place, 10_000, "'k' || n %% 300")
    seen: dict[int, int] = {}
    last: dict[bytes, int] = {}
    by_age = 0
    late = psycopg.connect(place.dsn)
    late.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('t', 'k1', 'late')")
    backlog(place, 10_000, "'k' || n %% 300")
    while (found := read(reader, 1_000, BATCH_BYTES, seen)) is not None:
        ids = ids_of(found)
        assert not set(ids) & set(seen)
        by_age += ids == sorted(ids)
        seen |= versions(found)
        for id_, key in zip(ids, arrow_of(found).column("key").to_pylist(), strict=True):
            # Rows come in id order per key, except for the late commit.
            assert last.get(key, 0) < id_ or id_ == 10_001
            last[key] = id_
        if len(seen) > 15_000:
            late.commit()
    late.close()
    assert len(seen) == 20_001
    assert by_age >= 12


def test_odd_header_arrays_are_read_equally_by_every_query(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    odd = {1_000: "'[5:6]={a,b}'", 2_000: "'{{a},{b}}'", 3_000: "'{}'", 4_000: "'[0:1]={a,b}'"}
    backlog(place, 4_500, "'k' || n %% 300")
    for id_, headers in odd.items():
        place.sql(f"UPDATE outbox SET kafka_header_keys = {headers}, kafka_header_values = {headers} WHERE id = {id_}")
    seen: dict[int, Any] = {}
    taken: dict[int, int] = {}
    by_age = set()
    while (found := read(reader, 300, BATCH_BYTES, taken)) is not None:
        rows, ids = arrow_of(found).to_pylist(), ids_of(found)
        taken |= versions(found)
        if ids == sorted(ids):
            by_age.update(ids)
        seen |= {row["id"]: (row["flaw"], row["header_keys"], row["header_values"]) for row in rows}
    assert len(seen) == 4_500
    ab = (None, ["a", "b"], [b"a", b"b"])
    assert (seen[1_000], seen[3_000], seen[4_000]) == (ab, (None, [], []), ab)
    assert seen[2_000][0] == "headers"
    # Not all of them: an update makes a row new.
    assert len(by_age & odd.keys()) >= 2


def test_a_quiet_bucket_does_not_wait_for_a_backlog(head: tuple[Place, PendingRows], clock: SetClock) -> None:
    place, reader = head
    quiet = next(f"q{n}" for n in itertools.count() if bucket_of(f"q{n}".encode()) == 7)
    keys = [f"k{n}" for n in range(2_000) if bucket_of(f"k{n}".encode()) != 7]
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT 't', convert_to(key, 'UTF8'), 'v'"
        " FROM generate_series(1, 20), unnest(%s::text[]) key",
        keys,
    )
    seen: dict[int, int] = {}
    for _ in range(6):
        seen |= found_of(reader, seen)
    place.stash(Message(topic="t", key=quiet, value="1"))
    ((newest,),) = place.sql("SELECT max(id) FROM outbox")
    window = found_of(reader, seen)
    assert newest not in window
    seen |= window
    clock.now += 0.5
    assert newest in found_of(reader, seen)


def found_of(head: PendingRows, seen: dict[int, int]) -> dict[int, int]:
    found = read(head, 1_000, BATCH_BYTES, seen)
    assert found is not None
    return versions(found)


def test_only_windows_are_planned_with_bitmap_scans(
    head: tuple[Place, PendingRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, reader = head
    backlog(place, 6_000, "'k' || n %% 300")
    fetch, seen = ArrowSession.fetch, set()
    modes = "SELECT current_setting('enable_bitmapscan') AS by_pages, current_setting('enable_indexscan') AS by_order"

    def watched(arrow: ArrowSession, query: str, wanted: dict[str, Any], **more: Any) -> Any:
        batches = fetch(arrow, query, wanted, **more)
        (mode,) = arrow._execute(modes).to_pylist()
        seen.add(("upto" in wanted, *mode.values()))
        return batches

    monkeypatch.setattr(ArrowSession, "fetch", watched)
    taken: dict[int, int] = {}
    while len(taken) < 6_000:
        taken |= found_of(reader, taken)
    assert seen == {(True, "on", "off"), (False, "off", "on")}


def test_a_shard_visits_no_rows_of_other_shards(head: tuple[Place, PendingRows]) -> None:
    place, _ = head
    backlog(place, 20_000, "'k' || n %% 1000")
    settings = place.settings(shards=8)
    with psycopg.connect(revealed(settings.dsn)) as connection:
        since = incarnation(connection, settings.outbox).since
    with contextlib.closing(PendingRows(settings, "tests", buckets_of(1, 8), since)) as reader:
        taken: dict[int, int] = {}
        for times in (1, 2):
            while (found := read(reader, 500, BATCH_BYTES, taken)) is not None:
                taken |= versions(found)
            ((mine,),) = place.sql("SELECT count(*) FROM outbox WHERE bucket & 7 = 1")
            assert len(taken) == mine
            # All rows are in flight, and further reads find nothing until new rows come.
            for _ in range(5):
                assert read(reader, 500, BATCH_BYTES, taken) is None
            if times == 1:
                backlog(place, 20_000, "'k' || n %% 1000")


def test_a_gap_of_ids_does_not_end_reading_by_windows(
    head: tuple[Place, PendingRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, reader = head
    for first in (1, 10_000_001):
        place.sql("SELECT setval(pg_get_serial_sequence('outbox', 'id'), %s, false)", first)
        backlog(place, 10_000, "'k' || n %% 1000")
    fetch, kinds = ArrowSession.fetch, []

    def watched(arrow: ArrowSession, query: str, wanted: dict[str, Any], **more: Any) -> Any:
        kinds.append("window" if "upto" in wanted else "by buckets")
        return fetch(arrow, query, wanted, **more)

    monkeypatch.setattr(ArrowSession, "fetch", watched)
    taken: dict[int, int] = {}
    while len(taken) < 20_000:
        # The clock stands still, so no fair read comes in between.
        taken |= found_of(reader, taken)
    assert kinds == ["by buckets", *["window"] * (len(kinds) - 1)]


def test_a_table_truncated_between_reads_is_read_from_the_head(head: tuple[Place, PendingRows]) -> None:
    place, reader = head
    backlog(place, 10_000, "'k' || n %% 300")
    taken: dict[int, int] = {}
    for _ in range(5):
        taken |= found_of(reader, taken)
    empty(place)
    backlog(place, 10_000, "'k' || n %% 300")
    again: dict[int, int] = {}
    last: dict[int, int] = {}
    for _ in range(30):
        found = read(reader, 1_000, BATCH_BYTES, taken | again)
        if found is not None:
            for id_ in ids_of(found):
                assert last.get(id_ % 300, 0) < id_
                last[id_ % 300] = id_
            again |= versions(found)
    assert set(again) == set(range(1, 10_001))


def test_a_window_larger_than_a_batch_is_read_again(
    head: tuple[Place, PendingRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, reader = head
    # The second Arrow batch holds the older rows.
    place.sql(
        "INSERT INTO outbox (id, kafka_topic, kafka_key) SELECT n, 't', convert_to('k' || n % 300, 'UTF8')"
        " FROM generate_series(8000, 1, -1) n"
    )
    fetch, cut = ArrowSession.fetch, 0

    def split(arrow: ArrowSession, query: str, wanted: dict[str, Any], **more: Any) -> list[pa.RecordBatch]:
        nonlocal cut
        (batch,) = fetch(arrow, query, wanted, **more)
        if "upto" not in wanted or batch.num_rows < 600:
            return [batch]
        cut += 1
        return [batch.slice(0, 500), batch.slice(500)]

    monkeypatch.setattr(ArrowSession, "fetch", split)
    taken: dict[int, int] = {}
    last: dict[int, int] = {}
    while len(taken) < 8_000:
        found = read(reader, 1_000, BATCH_BYTES, taken)
        assert found is not None
        for id_ in sorted(ids_of(found)):
            assert last.get(id_ % 300, 0) < id_
            last[id_ % 300] = id_
        taken |= versions(found)
    assert cut
