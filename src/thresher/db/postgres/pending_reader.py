"""Reads a shard's pending rows from Postgres, over two sessions: one for prepared statements, one for Arrow.

An idle shard polls all the time, so its probe is prepared once and executed through libpq directly. Nothing is written
to claim rows.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.core.secrets import SecretText
from thresher.db.control import require_same
from thresher.db.names import TableName
from thresher.db.outbox_store import PendingRow, Wanted
from thresher.db.postgres.arrays import text_literal
from thresher.db.postgres.arrow_session import ArrowSession
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.head_queries import (
    bounded_query,
    head_by_id_query,
    head_query,
    next_query,
    require_same_table,
    window_query,
)
from thresher.db.postgres.sessions import explained, incarnation
from thresher.db.row_schema import FLAW
from thresher.db.shape import Shape
from thresher.db.statements import statement

# A session may have several probes: each prepared statement needs a name of its own.
_NUMBERS = itertools.count(1)


class Probe:
    """Asks which buckets have pending rows, at the lowest cost for driver and server."""

    def __init__(
        self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape, buckets: Collection[int]
    ) -> None:
        self._connection = connection
        self._name = b"thresher_probe_%d" % next(_NUMBERS)
        self._buckets = f"{{{','.join(map(str, buckets))}}}".encode()
        query = statement(f"{shape.prefix}_probe", outbox)
        with explained():
            self._require(connection.pgconn.prepare(self._name, query.encode()))

    def occupied(self) -> frozenset[int]:
        """Return the buckets that have a pending row."""
        with explained():
            result = self._connection.pgconn.exec_prepared(self._name, [self._buckets])
            self._require(result)
        return frozenset(int(result.get_value(row, 0) or b"") for row in range(result.ntuples))

    def _require(self, result: PGresult) -> None:
        if result.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise psycopg.errors.error_from_result(result)


class PostgresPendingReader:
    """Reads pending rows over connections of its own. For one thread."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        dsn: SecretText,
        outbox: TableName,
        shape: Shape,
        *,
        application: str,
        since: str,
    ) -> None:
        """The reader owns the connection from now on. `since` is the incarnation that recovery settled."""
        self._outbox = outbox
        self._head, self._head_by_id = head_query(shape, outbox), head_by_id_query(shape, outbox)
        self._bounded, self._bounded_by_id = bounded_query(self._head, shape), bounded_query(self._head_by_id, shape)
        ours = shape is Shape.THRESHER
        self._window, self._window_counted = (
            (window_query(outbox, counted=counted) if ours else "") for counted in (False, True)
        )
        self._next = next_query(outbox) if ours else ""
        self._connection = connection
        found = incarnation(connection, outbox)
        require_same(found.since, since)
        self._table = found.table
        self._arrow = ArrowSession(dsn, outbox, application, connection, since)
        self._cursor = OwnCursor(connection)
        self._cursor.format = psycopg.pq.Format.BINARY

    def few(self, wanted: Wanted) -> Sequence[PendingRow]:
        """Return the oldest rows of these buckets, bucket by bucket, bounded by rows and by bytes."""
        with explained():
            query = self._bounded_by_id if wanted.by_id else self._bounded
            found = self._cursor.execute(query, self._values(wanted), prepare=True).fetchall()
        if found:
            require_same_table(found[0][FLAW])
        return found

    def by_buckets(self, wanted: Wanted, *, bounded: bool) -> pa.RecordBatch:
        """Return the oldest rows of each bucket, bucket by bucket, each bucket by id."""
        if wanted.by_id:
            query = self._bounded_by_id if bounded else self._head_by_id
        else:
            query = self._bounded if bounded else self._head
        return self._fetch(query, self._values(wanted))[0]

    def window(self, wanted: Wanted, *, after: int, upto: int, oldest_transaction: str) -> tuple[pa.RecordBatch, bool]:
        """Return the rows with ids in (after, upto], by id, with their ages; and whether the result is complete."""
        values = {**self._values(wanted, after), "last": after, "upto": upto, "oldest_transaction": oldest_transaction}
        window, *more = self._fetch(self._window, values, otherwise=self._window_counted, by_pages=True)
        return _by_id(window), window.num_rows < wanted.rows and not more

    def next_id(self, wanted: Wanted, *, after: int) -> int | None:
        """Return the id of the shard's first row after this id that is not in flight."""
        found: int | None = self._value(self._next, {**self._values(wanted, after), "last": after})
        return found

    def oldest_transaction(self) -> str | None:
        """Return the oldest transaction that is still running; None while a dead row blocks its key."""
        found: str | None = self._value(statement("relay_oldest_transaction", self._outbox), None)
        return found

    def holds_large_rows(self) -> bool:
        """Whether the table has TOASTed content."""
        return bool(self._value(statement("relay_large"), [self._outbox.quoted()]))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._arrow.close()

    def _fetch(self, query: str, values: dict[str, Any], **options: Any) -> list[pa.RecordBatch]:
        batches = self._arrow.fetch(query, values, **options)
        if batches[0].num_rows:
            require_same_table(batches[0].column("flaw")[0].as_py())
        return batches

    def _values(self, wanted: Wanted, after: int | None = None) -> dict[str, Any]:
        """Return the parameters of a read. A read after an id needs only the rows in flight after that id."""
        in_flight: Mapping[int, int] = wanted.in_flight
        if after is not None:
            in_flight = {id_: moment for id_, moment in in_flight.items() if id_ > after}
        return {
            "buckets": list(wanted.buckets),
            "rows": wanted.rows,
            "each": wanted.rows_per_bucket,
            "bytes": wanted.batch_bytes,
            "held": text_literal(wanted.held_topics),
            "among": wanted.among,
            "largest": wanted.largest_bytes,
            "hot_topics": [topic for topic, _ in wanted.hot_keys],
            "hot_keys": [key for _, key in wanted.hot_keys],
            "in_flight_ids": _listed(in_flight),
            "in_flight_times": _listed(in_flight.values()),
            "outbox": self._outbox.quoted(),
            "table": self._table,
        }

    def _value(self, query: Any, values: Any) -> Any:
        with explained():
            row = self._cursor.execute(query, values, prepare=True).fetchone()
        return None if row is None else row[0]


def _by_id(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows by id. Mostly they are in this order already."""
    ids = batch.column("id")
    if pc.all(pc.less(ids[:-1], ids[1:]), min_count=0).as_py():
        return batch
    return batch.take(pc.sort_indices(ids))


def _listed(numbers: Iterable[int]) -> str:
    """Return an array as text: quoting it as one value is faster than number by number."""
    return f"{{{','.join(map(str, numbers))}}}"
