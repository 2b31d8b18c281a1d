"""Pending rows are read completely and in order per key, while writers, publishers and operators act at random.

Writers have long and short transactions, some of which are rolled back in whole or in part. Batches are sent, given
back, or hold a row that blocks its key until it is replayed. Topics are held for a while. Actions are random, from a
seed. One thread does it all, so the order is known.
"""

import contextlib
import itertools
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.relay.reads import count_fetches, ids_of, read
from tests.relay.relaying import Place, tables_created
from thresher.cli.dead import replay
from thresher.core.secrets import revealed
from thresher.db.postgres.sessions import incarnation
from thresher.delivery.reading.prefetch import versions
from thresher.devstack.stack import Stack
from thresher.outbox.shape import BUCKETS, bucket_of
from thresher.relay.names import buckets_of
from thresher.relay.reading.pending_rows import PendingRows
from thresher.relay.reading.scan_plan import LOWEST

ROWS, KEYS, STEPS, WRITERS = 300, 400, 200, 3
HELD, QUIET = "held", 16


@dataclass
class Written:
    """A row: its key, and the steps in which its insert began and its transaction was committed."""

    key: str
    begun: int
    committed: int | None = None


@dataclass
class Writer:
    """A writer with at most one open transaction."""

    connection: psycopg.Connection[Any]
    rows: list[int] = field(default_factory=list)


class World:
    """An outbox, its writers, and one reader whose batches are sent in the order in which they were read."""

    def __init__(self, place: Place, head: PendingRows, keys: Sequence[str], seed: int) -> None:
        self.place, self.head, self.keys = place, head, keys
        self.random = random.Random(seed)
        self.step = 0
        self.rows: dict[int, Written] = {}
        self.writers = [Writer(psycopg.connect(place.dsn)) for _ in range(WRITERS)]
        self.batches: deque[list[int]] = deque()
        self.in_flight: dict[int, int] = {}
        self.held: tuple[str, ...] = ()
        self.generation = 0
        self.sent: list[int] = []

    def write(self) -> None:
        """Insert some rows, and end the transaction or leave it open."""
        chance = self.random.random
        writer = self.random.choice(self.writers)
        if chance() < 0.2:
            writer.connection.execute("SAVEPOINT part")
            part = self.insert(writer)
            if chance() < 0.5:
                writer.connection.execute("ROLLBACK TO part")
            else:
                writer.rows += part
        else:
            writer.rows += self.insert(writer)
        if chance() < 0.8:
            self.end(writer, commit=chance() < 0.9)

    def insert(self, writer: Writer) -> list[int]:
        keys = self.random.choices(self.keys, k=self.random.randrange(1, 900))
        topics = [HELD if int(key[1:]) % 5 == 0 else "t" for key in keys]
        cursor = writer.connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key) SELECT t, convert_to(k, 'UTF8')"
            " FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS r(t, k, n) ORDER BY n RETURNING id",
            [topics, keys],
        )
        ids = [row[0] for row in cursor.fetchall()]
        self.rows |= {id_: Written(key, self.step) for id_, key in zip(ids, keys, strict=True)}
        return ids

    def end(self, writer: Writer, *, commit: bool) -> None:
        if commit:
            writer.connection.commit()
            for id_ in writer.rows:
                self.rows[id_].committed = self.step
        else:
            writer.connection.rollback()
        writer.rows.clear()

    def read(self) -> int:
        found = read(self.head, ROWS, 1_000_000, self.in_flight, self.held, self.generation)
        if found is None:
            return 0
        ids = ids_of(found)
        assert not self.in_flight.keys() & set(ids)
        self.in_flight |= versions(found)
        self.batches.append(ids)
        return len(ids)

    def publish(self) -> None:
        """Send the oldest batch, without the rows that follow a row which blocks their key."""
        if not self.batches:
            return
        ids = self.batches.popleft()
        blocking = self.random.choice(ids) if self.random.random() < 0.03 else None
        if blocking is not None:
            key = self.rows[blocking].key
            ids = [id_ for id_ in ids if self.rows[id_].key != key or id_ < blocking]
            self.place.sql(
                "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
                " kafka_header_values, kind, reason, attempts, blocking) SELECT id, create_time, kafka_topic,"
                " kafka_key, '{}', '{}', 'malformed', '', 1, true FROM outbox WHERE id = %s",
                blocking,
            )
        self.place.sql("DELETE FROM outbox WHERE id = ANY (%s)", [*ids, *([] if blocking is None else [blocking])])
        self.sent += ids
        for id_ in ids:
            self.in_flight.pop(id_, None)
        if blocking is not None:
            self.go_back()

    def go_back(self) -> None:
        self.generation += 1
        self.in_flight.clear()
        self.batches.clear()

    def hold(self) -> None:
        """Hold a topic after all batches went back, or lift it without a notice to the reader."""
        if self.held:
            self.held = ()
        else:
            self.held = (HELD,)
            self.go_back()

    def replay(self) -> None:
        if self.place.sql("SELECT id FROM outbox_dead LIMIT 1"):
            replay(every=True, ds=self.place.dsn)

    def play(self) -> None:
        """Run all steps to the end, and check the order."""
        with contextlib.ExitStack() as open_:
            for writer in self.writers:
                open_.enter_context(writer.connection)
            self.go()
        self.require_order()

    def go(self) -> None:
        """Do random actions, and then send all rows."""
        doings = {self.write: 3, self.read: 5, self.publish: 4.5, self.go_back: 0.1, self.hold: 0.2, self.replay: 0.6}
        for self.step in range(STEPS):
            (doing,) = self.random.choices([*doings], [*doings.values()])
            doing()
        for writer in self.writers:
            self.end(writer, commit=True)
        self.held = ()
        idle = 0
        while idle < 3:
            self.step += 1
            self.replay()
            idle = 0 if self.read() or self.batches else idle + 1
            self.publish()

    def require_order(self) -> None:
        """Check that each committed row was sent once, after all rows of its key committed before its insert began."""
        assert sorted(self.sent) == sorted(id_ for id_, row in self.rows.items() if row.committed is not None)
        latest: dict[str, int] = {}
        for id_ in self.sent:
            row = self.rows[id_]
            assert row.committed is not None
            assert row.committed >= latest.get(row.key, 0), f"row {id_} of {row.key} came too late"
            latest[row.key] = max(latest.get(row.key, 0), row.begun)


@pytest.fixture
def place(stack: Stack, dsn: str) -> Place:
    return Place(stack, dsn, "none-", partitions=0)


# As the only shard, and among the rows of other shards.
@pytest.fixture(params=[1, 16], ids=["one shard", "one of sixteen shards"])
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def keys(shards: int) -> list[str]:
    """Return keys that belong to the shard."""
    mine = (key for key in map("k{}".format, itertools.count()) if bucket_of(key.encode()) % shards == 0)
    return list(itertools.islice(mine, KEYS))


@pytest.fixture
def head(place: Place, shards: int) -> Iterator[PendingRows]:
    settings = tables_created(place.settings(shards=shards))
    assert set(buckets_of(0, shards)) == set(range(0, BUCKETS, shards))
    with psycopg.connect(revealed(settings.dsn)) as connection:
        since = incarnation(connection, settings.outbox).since
    with contextlib.closing(PendingRows(settings, "tests", buckets_of(0, shards), since)) as opened:
        yield opened


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the reads by kind."""
    return count_fetches(monkeypatch)


# With more shards, rows of blocked keys prevent all reads by age.
@pytest.mark.parametrize("shards", [1, 4], ids=["one shard", "one of four shards"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 8))])
def test_committed_rows_are_sent_once_and_in_key_order(
    place: Place, head: PendingRows, keys: list[str], seed: int, fetched: Counter[str]
) -> None:
    world = World(place, head, keys, seed)
    world.play()
    assert len(world.sent) > 3_000
    # Otherwise the test has shown nothing.
    assert fetched["window"] > 2


def backlog(place: Place, keys: Sequence[str], rows: int) -> None:
    """Insert many rows into all buckets but one, and as many rows of other shards among them."""
    mine = [key.encode() for key in keys if bucket_of(key.encode()) != QUIET]
    others = [key for key in (f"k{n}".encode() for n in range(KEYS)) if bucket_of(key) % 2]
    place.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', key FROM generate_series(1, %s) n,"
        " LATERAL (SELECT (%s::bytea[])[1 + n %% %s] UNION ALL SELECT (%s::bytea[])[1 + n %% %s] WHERE %s) r(key)",
        rows,
        mine,
        len(mine),
        others,
        len(others),
        all(bucket_of(key.encode()) % 16 == 0 for key in keys),
    )


def reads(head: PendingRows) -> Iterator[list[int]]:
    """Read until no row is left. Rows that were read stay in flight."""
    seen: dict[int, int] = {}
    while (found := read(head, ROWS, 1_000_000, seen)) is not None:
        seen |= versions(found)
        yield ids_of(found)


@pytest.mark.parametrize("reads_before", range(10, 22, 3))
def test_a_late_commit_is_not_overtaken_by_later_rows(
    place: Place, head: PendingRows, keys: list[str], reads_before: int
) -> None:
    backlog(place, keys, 3_000)
    order: list[int] = []
    with psycopg.connect(place.dsn) as late:
        # The key has no other row.
        key = next(key for key in (f"late{n}".encode() for n in itertools.count()) if bucket_of(key) % 16 == 0)
        insert = "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', %s) RETURNING id"
        (first,) = late.execute(insert, [key]).fetchone() or ()
        backlog(place, keys, 3_000)
        for number, ids in enumerate(reads(head)):
            order += ids
            if number == reads_before:
                late.commit()
                ((second,),) = place.sql(insert, key)
    assert len(order) == 6_002
    assert order.index(first) < order.index(second)


@pytest.mark.parametrize("reads_before", range(1, 14, 4))
def test_an_early_id_is_not_overtaken_by_later_rows(
    place: Place, head: PendingRows, keys: list[str], reads_before: int
) -> None:
    ((first,),) = place.sql("SELECT nextval(pg_get_serial_sequence('outbox', 'id'))")
    backlog(place, keys, 6_000)
    order: list[int] = []
    # The bucket has no other row, so that the row is read early.
    quiet = next(key for key in (f"q{n}".encode() for n in range(1_000)) if bucket_of(key) == QUIET)
    insert = "INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (%s, 't', %s)"
    for number, ids in enumerate(reads(head)):
        order += ids
        if number == reads_before:
            place.sql(insert, first, quiet)
            place.sql(insert, 100_000, quiet)
    assert len(order) == 6_002
    assert order.index(first) < order.index(100_000)


def block(place: Place, key: str) -> None:
    """Make a row dead that blocks its key."""
    place.sql(
        "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        " kind, reason, attempts, blocking) VALUES (0, now(), 't', %s, '{}', '{}', 'malformed', '', 1, true)",
        key.encode(),
    )


def test_every_read_is_by_buckets_while_a_key_is_blocked(
    place: Place, head: PendingRows, keys: list[str], fetched: Counter[str]
) -> None:
    block(place, "other")
    store(place, "SELECT n FROM generate_series(1, 6000) n", keys)
    assert sum(map(len, reads(head))) == 6_000
    assert fetched["window"] == 0


@pytest.mark.parametrize("reads_before", [2, 5, 9])
def test_a_replayed_row_precedes_the_rows_that_waited_for_it(
    place: Place, head: PendingRows, keys: list[str], reads_before: int
) -> None:
    block(place, keys[1])
    backlog(place, keys, 6_000)
    order: list[int] = []
    for number, ids in enumerate(reads(head)):
        order += ids
        if number == reads_before:
            replay(every=True, ds=place.dsn)
    followers = [
        row[0] for row in place.sql("SELECT id FROM outbox WHERE kafka_key = %s ORDER BY id", keys[1].encode())
    ]
    assert [id_ for id_ in order if id_ in {0, *followers}] == sorted({0, *followers})


def store(place: Place, ids: str, keys: Sequence[str]) -> None:
    """Insert rows with these ids in the given order, which is their physical order. Keys take turns."""
    place.sql(
        "INSERT INTO outbox (id, kafka_topic, kafka_key)"
        f" SELECT id, 't', (%s::bytea[])[1 + row_number() OVER () %% %s] FROM ({ids}) i(id)",
        [key.encode() for key in keys],
        len(keys),
    )


LAID_OUT = {
    "the newest first": ("SELECT n FROM generate_series(6000, 1, -1) n",),
    "in disorder": ("SELECT n FROM generate_series(1, 6000) n ORDER BY md5(n::text)",),
    "far apart, then close together": (
        "SELECT 100 * n FROM generate_series(1, 2000) n",
        "SELECT n FROM generate_series(204000, 200001, -1) n",
    ),
    "close together, then far apart": (
        "SELECT n FROM generate_series(1, 4000) n",
        "SELECT 1000000000000 + 100000 * n FROM generate_series(1, 2000) n",
    ),
    "below zero, then at the end of all ids": (
        "SELECT n FROM generate_series(-3000, -1) n",
        "SELECT 9223372036854775807 - 3000 + n FROM generate_series(1, 3000) n",
    ),
}


@pytest.mark.parametrize("layout", LAID_OUT.values(), ids=LAID_OUT)
def test_rows_with_any_spread_of_ids_are_read_in_order(
    place: Place, head: PendingRows, keys: list[str], layout: Sequence[str], fetched: Counter[str]
) -> None:
    for part in layout:
        store(place, part, keys)
    key_of = dict(place.sql("SELECT id, kafka_key FROM outbox"))
    last: dict[bytes, int] = {}
    order: list[int] = []
    for ids in reads(head):
        assert len(ids) <= ROWS
        order += ids
        for id_ in ids:
            assert id_ > last.get(key_of[id_], LOWEST)
            last[key_of[id_]] = id_
    assert sorted(order) == sorted(key_of)
    # Otherwise the test has shown nothing.
    assert fetched["window"] > 5
