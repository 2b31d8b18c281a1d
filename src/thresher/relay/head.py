"""Reads the head of a shard: the oldest pending rows of its buckets that are not in flight.

An idle look costs a bare probe; a few rows one prepared query; many come as Arrow through ADBC. Read committed, on the
primary, in autocommit, and nothing is written to claim rows.
"""

import math
import time
from collections.abc import Collection
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.db import TableName, statement
from thresher.db.cursor import OwnCursor
from thresher.outbox.shape import BUCKETS, Shape, bucket_of
from thresher.relay.control import incarnation
from thresher.relay.database import connect, explain, explained, session
from thresher.relay.lot import READ_SCHEMA, Few, batch_of, read_of
from thresher.relay.problem import DatabaseLost
from thresher.relay.settings import Settings, Settling
from thresher.relay.weight import Weight

# Up to here, a query that returns Python's values is quicker.
_FEW = 200
# So many reads go by age, then one by buckets. With more shards, too many rows of others would be stepped over.
_BY_AGE, _MOST_SHARDS = 3, 2
# One that takes so many times as long for a row steps over too much: so many go by buckets then, more the next time.
_SLOW, _PENANCE, _MOST_PENANCE = 3.0, 16, 1_024
# By age, rows come in the order of an index: there is nothing to sort, whatever the statistics say.
UNSORTED = "-c enable_sort=off -c enable_incremental_sort=off"


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


class Turns:
    """Which reads go by age: some, after one by buckets has found that all of them have many.

    By buckets, one that has little is not kept waiting by the others; so every few reads go by them. And what other
    shards leave behind is not stepped over: where that makes reads by age slow, there are none for a while.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._left = self._rest = 0
        self._penance = _PENANCE
        # What a row takes to be read by buckets.
        self._usual_seconds = 0.0

    @property
    def by_age(self) -> bool:
        """Whether the next read goes by age."""
        return self._left > 0

    def learn(self, found: int, rows: int, seconds: float, *, even: bool = False) -> None:
        """Take in a read: how many rows it found and wanted, what it took, and whether all buckets have many."""
        each_seconds = seconds / max(1, found)
        if self._left == 0:
            self._usual_seconds = each_seconds
            self._rest = max(0, self._rest - 1)
            if even and found >= rows and self._allowed and self._rest == 0:
                self._left = _BY_AGE
        elif found < rows:
            self._left = 0
        elif each_seconds > _SLOW * self._usual_seconds:
            self._left, self._rest, self._penance = 0, self._penance, min(2 * self._penance, _MOST_PENANCE)
        else:
            self._left -= 1
            self._penance = _PENANCE


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
    one = "i.bucket >= b.bucket AND i.bucket <= b.bucket"
    return _picking(statement(f"{shape.prefix}_head", outbox), outbox, one, unclaimed)


def aged_query(outbox: TableName) -> str:
    """Return the statement that reads a head of our own shape by age."""
    mine = "i.bucket = ANY (%(buckets)s::smallint[])"
    return _picking(statement("outbox_head_by_age"), outbox, mine, "relay_not_in_flight")


def _picking(head: str, outbox: TableName, mine: str, unclaimed: str) -> str:
    pick = statement("outbox_pick", outbox).rstrip().replace("{mine}", mine)
    return head.replace("{pick}", pick).replace("{unclaimed}", statement(unclaimed).strip())


def bounded_query(head: str) -> str:
    """Return the same, bounded by bytes too."""
    return statement("relay_head_bounded").replace("{head}", head)


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
        self._turns = Turns(allowed=ages and len(self._buckets) * _MOST_SHARDS >= BUCKETS)
        self._aged = aged_query(settings.outbox) if ages else ""
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
        # Whether the last read of many went by age.
        self._by_age = False

    def read(
        self, rows: int, size: int, in_flight: Collection[int], held: Collection[str], _generation: int
    ) -> pa.RecordBatch | Few | None:
        """Return up to so many rows and, where rows are large, bytes of the head; None if there are none."""
        buckets = self._buckets
        if not in_flight and not self._deep:
            holding = self._probe.finds()
            if not holding:
                return None
            buckets = [bucket for bucket in buckets if bucket in holding]
        wanted: dict[str, Any] = {
            # As text: thousands of numbers are quoted in one go.
            "in_flight": f"{{{','.join(map(str, in_flight))}}}",
            "held": list(held),
            "bytes": size,
            "largest": self._largest,
            "outbox": self._settings.outbox.quoted(),
            "file": self._file,
        }
        if not self._deep:
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
        each = self._share.of(rows)
        wanted |= {"buckets": self._buckets, "rows": rows, "each": each}
        began = time.monotonic()
        batch = self._read_many(wanted)
        seconds = time.monotonic() - began
        found_rows = batch.num_rows
        self._deep = found_rows >= _FEW
        if not found_rows:
            return None
        self._weight.learn(batch.nbytes, found_rows)
        if self._by_age:
            self._turns.learn(found_rows, rows, seconds)
            return batch
        asked, all_ = self._turn(batch.column("id")[-1].as_py(), batch.column("key")[-1].as_py()), len(self._buckets)
        if batch.nbytes <= size // 2:
            self._share.learn(found_rows, rows, asked if found_rows >= rows else all_)
        # Where one bucket was asked for much more than its part, it may have given most of it.
        self._turns.learn(found_rows, rows, seconds, even=asked >= 0.75 * all_ and each * all_ <= 2 * rows)
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

    def _read_many(self, wanted: dict[str, Any]) -> pa.RecordBatch:
        # What compresses well is large without being stored out of line.
        heavy = self._weight.of(wanted["rows"]) > wanted["bytes"] or self._holds_large_rows()
        self._by_age = not heavy and self._turns.by_age
        query = self._bounded if heavy else self._aged if self._by_age else self._query
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
            raise explain(error.sqlstate, str(error)) from error
        batches = table.cast(READ_SCHEMA).combine_chunks().to_batches()
        return batches[0] if batches else batch_of([])

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

    def _holds_large_rows(self) -> bool:
        with explained():
            row = self._cursor.execute(self._large, [self._settings.outbox.quoted()], prepare=True).fetchone()
        return row is not None and bool(row[0])
