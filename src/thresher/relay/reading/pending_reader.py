"""Asks Postgres for a shard's pending rows, over two sessions: one for prepared queries, one for Arrow.

An idle shard asks all day, so its probe is prepared once and executed bare.
"""

from collections.abc import Collection, Iterable
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.db import statement
from thresher.db.cursor import OwnCursor
from thresher.outbox.shape import Shape
from thresher.relay.control import incarnation, require_same
from thresher.relay.database import connect, explained
from thresher.relay.reading.arrow_session import ArrowSession
from thresher.relay.reading.read_queries import bounded_query, head_query, next_query, window_query
from thresher.relay.reading.row_source import ReadRequest
from thresher.relay.settings import Settings

_PROBE = b"thresher_probe"


def largest_row(settings: Settings) -> int:
    """Return how large a row may be to be looked at: a larger one can never be sent."""
    asked = {**settings.kafka, **settings.producer}.get("message.max.bytes", 1_000_000)
    return max(int(asked), settings.limits.batch_bytes)


class Probe:
    """Asks which buckets hold anything, with as little as the driver and the server can do."""

    def __init__(self, connection: psycopg.Connection[Any], settings: Settings, buckets: Collection[int]) -> None:
        self._connection = connection
        self._buckets = f"{{{','.join(map(str, buckets))}}}".encode()
        query = statement(f"{settings.shape.prefix}_probe", settings.outbox)
        with explained():
            self._require(connection.pgconn.prepare(_PROBE, query.encode()))

    def finds(self) -> frozenset[int]:
        """Return the buckets in which a row is pending."""
        with explained():
            result = self._connection.pgconn.exec_prepared(_PROBE, [self._buckets])
            self._require(result)
        return frozenset(int(result.get_value(row, 0) or b"") for row in range(result.ntuples))

    def _require(self, result: PGresult) -> None:
        if result.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise psycopg.errors.error_from_result(result)


class PendingReader:
    """Reads over its own connections. For one thread."""

    def __init__(self, settings: Settings, application: str, buckets: Collection[int], since: str) -> None:
        self._outbox = settings.outbox
        self._largest = largest_row(settings)
        self._head = head_query(settings.shape, settings.outbox)
        self._bounded = bounded_query(self._head)
        ours = settings.shape is Shape.THRESHER
        self._window, self._window_counted = (
            (window_query(settings.outbox, counted=counted) if ours else "") for counted in (False, True)
        )
        self._next = next_query(settings.outbox) if ours else ""
        self._connection = connect(settings.dsn, application)
        require_same(incarnation(self._connection, settings.outbox).since, since)
        self._arrow = ArrowSession(settings, application, self._connection, since)
        self._cursor = OwnCursor(self._connection)
        self._cursor.format = psycopg.pq.Format.BINARY
        self._probe = Probe(self._connection, settings, buckets)

    def occupied(self) -> frozenset[int]:
        """Return the buckets that hold anything."""
        return self._probe.finds()

    def few(self, request: ReadRequest, buckets: Collection[int], rows: int) -> list[tuple[Any, ...]]:
        """Return the head of these buckets, up to so many rows, bounded by bytes too."""
        wanted = {**self._wanted(request, buckets), "rows": rows, "each": rows}
        with explained():
            return self._cursor.execute(self._bounded, wanted, prepare=True).fetchall()

    def by_buckets(self, request: ReadRequest, buckets: Collection[int], each: int, *, bounded: bool) -> pa.RecordBatch:
        """Return the head of each bucket, in their order, each bucket by id."""
        wanted = {**self._wanted(request, buckets), "each": each}
        return self._arrow.fetch(self._bounded if bounded else self._head, wanted)[0]

    def window(
        self, request: ReadRequest, buckets: Collection[int], after: int, upto: int, most: int, horizon: str
    ) -> tuple[pa.RecordBatch, bool]:
        """Return the rows of a window of ids, by id, with `old`; and whether they are all there are."""
        in_flight = {id_: moment for id_, moment in request.in_flight.items() if id_ > after}
        wanted = {
            **self._wanted(request, buckets, in_flight),
            "last": after,
            "upto": upto,
            "rows": most,
            "horizon": horizon,
        }
        window, *more = self._arrow.fetch(self._window, wanted, otherwise=self._window_counted, by_pages=True)
        return _by_id(window), window.num_rows < most and not more

    def next_id(self, request: ReadRequest, buckets: Collection[int], after: int) -> int | None:
        """Return the id of the shard's first row behind this one that is not in flight."""
        in_flight = {id_: moment for id_, moment in request.in_flight.items() if id_ > after}
        wanted = {**self._wanted(request, buckets, in_flight), "last": after}
        found: int | None = self._value(self._next, wanted)
        return found

    def oldest_running(self) -> str | None:
        """Return the oldest transaction that has not ended; None while a dead row blocks its key."""
        found: str | None = self._value(statement("relay_horizon", self._outbox), None)
        return found

    def holds_large_rows(self) -> bool:
        """Whether the table stores anything out of line."""
        return bool(self._value(statement("relay_large"), [self._outbox.quoted()]))

    def close(self) -> None:
        """Let go of the connections."""
        self._connection.close()
        self._arrow.close()

    def _value(self, query: Any, values: Any) -> Any:
        with explained():
            row = self._cursor.execute(query, values, prepare=True).fetchone()
        return None if row is None else row[0]

    def _wanted(self, request: ReadRequest, buckets: Collection[int], in_flight: Any = None) -> dict[str, Any]:
        claimed = request.in_flight if in_flight is None else in_flight
        return {
            "buckets": list(buckets),
            "rows": request.rows,
            "bytes": request.bytes,
            "held": list(request.held),
            "largest": self._largest,
            "in_flight_ids": _listed(claimed),
            "in_flight_times": _listed(claimed.values()),
        }


def _by_id(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows by id, which is mostly how they lie already."""
    ids = batch.column("id")
    if pc.all(pc.less(ids[:-1], ids[1:]), min_count=0).as_py():
        return batch
    return batch.take(pc.sort_indices(ids))


def _listed(numbers: Iterable[int]) -> str:
    """Return an array as text: thousands of numbers are quoted in one go."""
    return f"{{{','.join(map(str, numbers))}}}"
