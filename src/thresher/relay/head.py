"""Reads the head of a shard: the oldest pending rows of its buckets that are not in flight.

An idle look costs a bare probe; a few rows one prepared query; many come as Arrow through ADBC. Read committed, on the
primary, in autocommit, and nothing is written to claim rows.
"""

import math
import time
from collections.abc import Collection, Iterable
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.db import TableName, statement
from thresher.db.cursor import OwnCursor
from thresher.outbox.shape import BUCKETS, Shape, bucket_of
from thresher.relay.control import incarnation
from thresher.relay.database import connect, explain, explained, session
from thresher.relay.lot import READ_SCHEMA, Few, read_of
from thresher.relay.problem import DatabaseLost
from thresher.relay.settings import Settings, Settling
from thresher.relay.trail import LOWEST, Trail
from thresher.relay.turns import Turns
from thresher.relay.weight import Weight

# Up to here, a query that returns Python's values is quicker.
_FEW = 200
# By age, rows come in the order of an index: there is nothing to sort, whatever the statistics say.
UNSORTED = "-c enable_sort=off -c enable_incremental_sort=off"
# Of the buckets, the one in turn.
_ONE = "i.bucket >= b.bucket AND i.bucket <= b.bucket"
# Arrays counted from 1, whatever their bounds are; one of arrays is a flaw, and stays behind.
_COUNTED = "CASE WHEN array_ndims(i.{0}) = 1 THEN i.{0}[:] ELSE '{{}}' END"


def largest(settings: Settings) -> int:
    """Return how large a row may be to be looked at: a larger one can never be sent."""
    asked = {**settings.kafka, **settings.producer}.get("message.max.bytes", 1_000_000)
    return max(int(asked), settings.limits.batch_bytes)


def require_same(since: str, expected: str) -> None:
    """See that it is the database that recovery settled: in one restored since, sent rows are back."""
    if since != expected:
        raise DatabaseLost("the database was restarted or replaced: the shard recovers first")


class Share:
    """How many rows of a lot one bucket may give: about an equal part where all have many, and all where one has."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        # Of an equal part.
        self._factor = 1.25

    def of(self, rows: int) -> int:
        """Return what to ask each bucket for, of a lot of so many rows."""
        return max(1, min(rows, math.ceil(rows * self._factor / self._buckets)))

    def learn(self, found: int, rows: int, asked: int) -> None:
        """Ask for more where all buckets together gave too few, and for less where many were not even asked."""
        if found < 0.75 * rows:
            self._factor = min(2.0 * self._factor, 2.0 * self._buckets)
        elif asked < 0.75 * self._buckets:
            self._factor = max(0.5 * self._factor, 1.25)


class Probe:
    """Asks where there is anything, with as little as the driver and the server can do: idle shards ask all day."""

    _NAME = b"thresher_probe"

    def __init__(self, connection: psycopg.Connection[Any], settings: Settings, buckets: Collection[int]) -> None:
        self._connection = connection
        self._buckets = f"{{{','.join(map(str, buckets))}}}".encode()
        query = statement(f"{settings.shape.prefix}_probe", settings.outbox)
        with explained():
            self._require(connection.pgconn.prepare(self._NAME, query.encode()))

    def finds(self) -> frozenset[int]:
        """Return the buckets in which a row is pending."""
        with explained():
            result = self._connection.pgconn.exec_prepared(self._NAME, [self._buckets])
            self._require(result)
        return frozenset(int(result.get_value(row, 0) or b"") for row in range(result.ntuples))

    def _require(self, result: PGresult) -> None:
        if result.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise psycopg.errors.error_from_result(result)


def head_query(shape: Shape, outbox: TableName, unclaimed: str) -> str:
    """Return the statement that reads a head, without what `unclaimed` leaves out."""
    left_out = statement(unclaimed).strip()
    if shape is not Shape.THRESHER:
        return statement(f"{shape.prefix}_head", outbox, unclaimed=left_out)
    return statement("outbox_head", outbox, pick=_pick(outbox, mine=_ONE, unclaimed=left_out))


def aged_query(outbox: TableName, *, counted: bool = False) -> str:
    """Return the statement that reads a head of our own shape by age: arrays as they are, or counted from 1."""
    mine = "i.id > %(last)s AND i.bucket = ANY (%(buckets)s::smallint[])"
    old = ",\n       pg_catalog.age(i.xmin) > (SELECT pg_catalog.age(%(horizon)s::xid8::xid)) AS old"
    unclaimed = statement("relay_not_in_flight").strip()
    pick = _pick(outbox, mine=mine, unclaimed=unclaimed, more=old, counted=counted)
    return statement("outbox_head_by_age", outbox, pick=pick)


def behind_query(outbox: TableName) -> str:
    """Return the statement that reads a head of our own shape by buckets where it was read by age."""
    unclaimed = statement("relay_not_in_flight").strip()
    late = _pick(outbox, mine="i.id <= %(last)s AND i.bucket = ANY (%(buckets)s::smallint[])", unclaimed=unclaimed)
    later = _pick(outbox, mine=f"{_ONE} AND i.id > %(last)s", unclaimed=unclaimed)
    return statement("outbox_head_behind", late=late, head=statement("outbox_head", outbox, pick=later))


def _pick(outbox: TableName, *, mine: str, unclaimed: str, more: str = "", counted: bool = True) -> str:
    arrays = {
        column: _COUNTED.format(column) if counted else f"i.{column}"
        for column in ("kafka_header_keys", "kafka_header_values")
    }
    return statement("outbox_pick", outbox, mine=mine, unclaimed=unclaimed, more=more, **arrays).rstrip()


def bounded_query(head: str) -> str:
    """Return the same, bounded by bytes too."""
    return statement("relay_head_bounded", head=head)


class Head:
    """The head of one shard, over its own connections. For one thread."""

    def __init__(self, settings: Settings, application: str, buckets: Collection[int], since: str) -> None:
        self._settings = settings
        self._application = application
        self._buckets = list(buckets)
        self._query = head_query(settings.shape, settings.outbox, "relay_not_in_flight")
        self._bounded = bounded_query(self._query)
        # Rows that were sent and stay would be stepped over.
        ages = settings.shape is Shape.THRESHER and settings.settling is Settling.DELETE
        self._turns = Turns(share=len(self._buckets) / BUCKETS if ages else 0.0)
        self._trail = Trail()
        self._aged, self._aged_counted = (aged_query(settings.outbox, counted=counted) for counted in (False, True))
        self._behind = behind_query(settings.outbox)
        self._horizon = statement("relay_horizon", settings.outbox)
        self._large = statement("relay_large")
        self._since = since
        self._largest = largest(settings)
        self._connection = connect(settings.dsn, application)
        require_same(incarnation(self._connection, settings.outbox).since, since)
        self._cursor = OwnCursor(self._connection)
        self._cursor.format = psycopg.pq.Format.BINARY
        self._probe = Probe(self._connection, settings, buckets)
        self._file = self._find_file()
        self._arrow: Any = None
        # The last query was cut off by its limit: there is more.
        self._deep = False
        self._weight = Weight()
        self._share = Share(len(self._buckets))

    def read(
        self, rows: int, size: int, in_flight: Collection[int], held: Collection[str], generation: int
    ) -> pa.RecordBatch | Few | None:
        """Return up to so many rows and, where rows are large, bytes of the head; None if there are none."""
        buckets = self._buckets
        if not in_flight and not self._deep:
            self._stop_aging()
            holding = self._probe.finds()
            if not holding:
                return None
            buckets = [bucket for bucket in buckets if bucket in holding]
        wanted: dict[str, Any] = {
            "in_flight": _listed(in_flight),
            "held": list(held),
            "bytes": size,
            "largest": self._largest,
            "outbox": self._settings.outbox.quoted(),
            "file": self._file,
        }
        if not self._deep and not self._turns.by_age:
            few = min(_FEW, rows)
            with explained():
                # Bounded by bytes always: for few rows that costs nothing.
                few_wanted = {**wanted, "buckets": buckets, "rows": few, "each": few}
                found = self._cursor.execute(self._bounded, few_wanted, prepare=True).fetchall()
            if not found:
                if not in_flight:
                    # There are some, and none of the file that is known, or all are held.
                    self._file = self._find_file()
                return None
            read = read_of(found)
            self._weight.learn(read.nbytes, len(found))
            if len(found) < few or few == rows or read.nbytes > size // 2:
                self._turn(found[-1][0], found[-1][3])
                return read
        wanted |= {"buckets": self._buckets, "rows": rows}
        batch = self._read_many(wanted, in_flight, generation)
        self._deep = batch.num_rows >= _FEW
        if not batch.num_rows:
            return None
        self._weight.learn(batch.nbytes, batch.num_rows)
        return batch

    def close(self) -> None:
        """Let go of the connections."""
        self._connection.close()
        if self._arrow is not None:
            self._arrow.close()

    def _turn(self, id_: int, key: bytes | None) -> int:
        """Begin behind the last row's bucket next time: one with a long backlog does not keep the others waiting, nor
        does one whose next row was too large to come along.

        Returns how many buckets were asked.
        """
        last = id_ % BUCKETS if key is None else bucket_of(key)
        if last not in self._buckets:
            # Its key was too large to be looked at.
            return len(self._buckets)
        place = self._buckets.index(last) + 1
        self._buckets = self._buckets[place:] + self._buckets[:place]
        return place

    def _read_many(self, wanted: dict[str, Any], in_flight: Collection[int], generation: int) -> pa.RecordBatch:
        # What compresses well is large without being stored out of line.
        heavy = self._weight.of(wanted["rows"]) > wanted["bytes"] or self._holds_large_rows()
        if heavy:
            self._stop_aging()
        if self._turns.by_age:
            return self._read_by_age(wanted, in_flight, generation)
        return self._read_by_buckets(wanted, generation, heavy=heavy)

    def _read_by_buckets(self, wanted: dict[str, Any], generation: int, *, heavy: bool) -> pa.RecordBatch:
        rows = self._turns.rows_by_buckets(wanted["rows"])
        each, all_ = self._share.of(rows), len(self._buckets)
        began = time.monotonic()
        behind = self._turns.between and self._trail.horizon(generation, began) is not None
        query = self._bounded if heavy else self._behind if behind else self._query
        batch = self._fetch(query, {**wanted, "rows": rows, "each": each, "last": self._trail.last})
        found, seconds = batch.num_rows, time.monotonic() - began
        if not found:
            return batch
        even, last = False, batch.column("id")[-1].as_py()
        # What has come late may be so much that no bucket was asked.
        if not behind or last > self._trail.last:
            asked = self._turn(last, batch.column("key")[-1].as_py())
            if batch.nbytes <= wanted["bytes"] // 2:
                self._share.learn(found, rows, asked if found >= rows else all_)
            # Where one bucket was asked for much more than its part, it may have given most of it.
            even = asked >= 0.75 * all_ and each * all_ <= 2 * rows
        self._turns.learn(found, rows, seconds, even=even, wanted=wanted["rows"])
        if not self._turns.by_age:
            self._trail.end()
        return batch

    def _read_by_age(self, wanted: dict[str, Any], in_flight: Collection[int], generation: int) -> pa.RecordBatch:
        """Go on behind the last row, or read from the head, also where going on gives nothing."""
        rows, began, batch = wanted["rows"], time.monotonic(), None
        horizon = None if wanted["held"] else self._trail.horizon(generation, began)
        if horizon is not None:
            batch = self._go_on(wanted, in_flight, horizon)
        if batch is None or not batch.num_rows:
            self._trail.begin(None if wanted["held"] else self._find_horizon(), generation, began)
            start = {"last": LOWEST, "horizon": None}
            batch = self._fetch(self._aged, {**wanted, **start}, otherwise=self._aged_counted).drop_columns("old")
            self._note_end(batch, rows)
        self._turns.learn(batch.num_rows, rows, time.monotonic() - began)
        if not self._turns.by_age and not self._turns.between:
            self._trail.end()
        return batch

    def _go_on(self, wanted: dict[str, Any], in_flight: Collection[int], horizon: str) -> pa.RecordBatch:
        """Return rows that are old enough, up to the first that is not."""
        last = self._trail.last
        later = [id_ for id_ in in_flight if id_ > last]
        start = {"last": last, "horizon": horizon, "in_flight": _listed(later)}
        batch = self._fetch(self._aged, {**wanted, **start}, otherwise=self._aged_counted)
        new = pc.index(batch.column("old"), False).as_py()
        batch = batch.drop_columns("old").slice(0, None if new < 0 else new)
        self._note_end(batch, wanted["rows"], futile=new >= 0 and 2 * new < wanted["rows"])
        return batch

    def _note_end(self, batch: pa.RecordBatch, rows: int, *, futile: bool = False) -> None:
        if batch.num_rows >= rows:
            self._trail.went(batch.column("id")[-1].as_py())
        else:
            self._trail.end(futile=futile)

    def _stop_aging(self) -> None:
        self._turns.stop()
        self._trail.leave()

    def _fetch(self, query: str, wanted: dict[str, Any], *, otherwise: str | None = None) -> pa.RecordBatch:
        """Return what a statement gives; where the driver cannot read that, what the other one does."""
        text = self._text(query, wanted)
        try:
            if self._arrow is None:
                self._arrow = adbc_driver_postgresql.dbapi.connect(
                    session(self._settings.dsn, self._application, UNSORTED), autocommit=True
                )
                with self._arrow.cursor() as cursor:
                    cursor.execute(self._text(statement("incarnation"), [self._settings.outbox.quoted()]))
                    require_same(cursor.fetchone()[1], self._since)
            with self._arrow.cursor() as cursor:
                cursor.execute(text)
                table = cursor.fetch_arrow_table()
        except adbc_driver_manager.Error as error:
            if otherwise is not None and error.sqlstate is None:
                return self._fetch(otherwise, wanted)
            raise explain(error.sqlstate, str(error)) from error
        schema = pa.schema([*READ_SCHEMA, *list(table.schema)[len(READ_SCHEMA) :]])
        batches = table.cast(schema).combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)

    def _text(self, query: str, values: Any) -> str:
        """Return a statement with its values in it: through ADBC it has no others."""
        with explained():
            return psycopg.ClientCursor(self._connection).mogrify(query, values)

    def _find_file(self) -> int | None:
        with explained():
            row = self._cursor.execute(
                statement("relay_file"), [self._settings.outbox.quoted()], prepare=True
            ).fetchone()
        return None if row is None else row[0]

    def _find_horizon(self) -> str | None:
        with explained():
            row = self._cursor.execute(self._horizon, prepare=True).fetchone()
        return None if row is None else row[0]

    def _holds_large_rows(self) -> bool:
        with explained():
            row = self._cursor.execute(self._large, [self._settings.outbox.quoted()], prepare=True).fetchone()
        return row is not None and bool(row[0])


def _listed(ids: Iterable[int]) -> str:
    """Return an array as text: thousands of numbers are quoted in one go."""
    return f"{{{','.join(map(str, ids))}}}"
