"""Marks the head of a shard that delivers at least once: the oldest rows that it has not marked yet become its own.

One statement under the term, so that a leader that was superseded marks nothing. An older attempt under the same term
may still mark: a row that comes back although it was marked tells of it, and the shard starts over. A mark need not be
durable: a database that forgets one was restarted, and then the shard starts over. So it costs no flush to disk.
"""

import uuid
from collections.abc import Callable, Collection
from typing import Any

import psycopg
import pyarrow as pa

from thresher.core.errors import Superseded
from thresher.db import statement
from thresher.db.arrays import bigint_array
from thresher.db.cursor import BigintArray, OwnCursor
from thresher.db.problem import DatabaseLost
from thresher.delivery.stored_rows import FewRows, read_of
from thresher.relay.control import ControlTable, incarnation, require_same
from thresher.relay.database import connect, explained
from thresher.relay.names import control_table
from thresher.relay.reading.pending_reader import Probe, largest_row
from thresher.relay.reading.read_queries import bounded_query, head_query
from thresher.relay.reading.row_source import ReadRequest
from thresher.relay.reading.scan_plan import ScanPlan
from thresher.relay.settings import Mandate

# Buckets take turns in being the first to be asked: by a number that has no factor in common with theirs.
_TURN = 7
Stream = tuple[str, bytes]


class Marking:
    """Marks rows as it reads them, over a connection of its own. For one thread."""

    def __init__(
        self,
        mandate: Mandate,
        application: str,
        buckets: Collection[int],
        since: str,
        leader: Callable[[int], uuid.UUID],
        hot: Callable[[], Collection[Stream]],
    ) -> None:
        settings = mandate.settings
        self._settings, self._mandate = settings, mandate
        self._buckets = list(buckets)
        self._leader, self._hot = leader, hot
        self._largest = largest_row(settings)
        head = bounded_query(head_query(settings.shape, settings.outbox, f"{settings.shape.prefix}_not_mine"))
        self._mark = statement("relay_mark", settings.outbox, head=head, control=_control(mandate))
        self._connection = connect(settings.dsn, application)
        require_same(incarnation(self._connection, settings.outbox).since, since)
        with explained():
            self._connection.execute("SET synchronous_commit = off")
        self._cursor = OwnCursor(self._connection)
        self._cursor.format = psycopg.pq.Format.BINARY
        self._probe = Probe(self._connection, settings, buckets)
        self._plan = ScanPlan(len(self._buckets), windows=False)

    def read(self, request: ReadRequest) -> pa.RecordBatch | FewRows | None:
        """Mark up to so many rows and bytes of the head, and return them by id; None if there are none."""
        if not request.in_flight and not self._probe.finds():
            return None
        hot = self._hot()
        wanted: dict[str, Any] = {
            "buckets": self._buckets,
            "held": list(request.held),
            "bytes": request.bytes,
            "largest": self._largest,
            "rows": request.rows,
            "each": self._plan.each(request.rows),
            "leader": self._leader(request.generation),
            "hot_topics": [topic for topic, _ in hot],
            "hot_keys": [key for _, key in hot],
            "name": self._settings.name,
            "term": self._mandate.term,
        }
        with explained():
            found = self._cursor.execute(self._mark, wanted, prepare=True).fetchall()
        self._plan.learn_share(len(found), len(self._buckets), request.rows)
        self._buckets = self._buckets[_TURN % len(self._buckets) :] + self._buckets[: _TURN % len(self._buckets)]
        if not found:
            self._require_term()
            return None
        if taken := {row[0] for row in found}.intersection(request.in_flight):
            # Sent once more, they would come behind their followers.
            raise DatabaseLost(
                f"{len(taken)} rows that this shard had marked were marked by another: an older attempt at it is still "
                "at work, and the shard starts over"
            )
        return read_of(found)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _require_term(self) -> None:
        """Raise `Superseded` if that is why nothing was marked."""
        row = ControlTable(self._connection, self._settings.outbox).read(self._settings.name)
        if row is None or row.term != self._mandate.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")


def reset(connection: psycopg.Connection[Any], mandate: Mandate, leader: uuid.UUID, ids: Collection[int]) -> int:
    """Take our marks off these rows, if the term is ours; return how many there were. Repeating it changes nothing."""
    values = {
        "ids": BigintArray(bigint_array(list(ids))),
        "leader": leader,
        "name": mandate.settings.name,
        "term": mandate.term,
    }
    with explained():
        query = statement("relay_reset", mandate.settings.outbox, control=_control(mandate))
        return OwnCursor(connection).execute(query, values).rowcount


def _control(mandate: Mandate) -> str:
    """Return the name of the control table for a statement with parameters."""
    return control_table(mandate.settings.outbox).quoted().replace("%", "%%")
