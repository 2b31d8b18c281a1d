"""Marks the head of a shard that delivers at least once: the oldest rows that it has not marked yet become its own.

One statement under the term, so that a leader that was superseded marks nothing. An older attempt under the same term
may still mark: a row that comes back although it was marked tells of it, and the shard starts over. A mark need not be
durable: a database that forgets one was restarted, and then the shard starts over. So it costs no flush to disk.
"""

import uuid
from collections.abc import Callable, Collection

import pyarrow as pa

from thresher.db.control import require_same
from thresher.db.outbox_store import Wanted
from thresher.db.problem import DatabaseLost
from thresher.delivery.batch import Few, read_of
from thresher.relay.reading.pending_rows import Probe, Share, largest
from thresher.relay.settings import Mandate
from thresher.relay.store import store_of

# Buckets take turns in being the first to be asked: by a number that has no factor in common with theirs.
_TURN = 7
Stream = tuple[str, bytes]


def leader_id(drawn: uuid.UUID, generation: int) -> uuid.UUID:
    """Return what a process marks with: by what it has drawn for itself, and another one after each start over.

    Not by term, shard and attempt, which come again where Spark runs a task again by itself: what the first had marked
    would count as the second's, and be sent by nobody.
    """
    return uuid.uuid5(drawn, str(generation))


class Marker:
    """Marks over a connection of its own. For one thread; in place of a `Head`."""

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
        self._buckets = list(buckets)
        self._leader, self._hot = leader, hot
        self._largest = largest(settings)
        self._session = store_of(settings).session(application, durable=False)
        require_same(self._session.incarnation().since, since)
        self._marks = self._session.marks(settings.name, mandate.term)
        self._probe = Probe(self._session.connection, settings, buckets)
        self._share = Share(len(self._buckets))

    def read(
        self, rows: int, size: int, in_flight: Collection[int], held: Collection[str], generation: int
    ) -> pa.RecordBatch | Few | None:
        """Mark up to so many rows and bytes of the head, and return them by id; None if there are none."""
        if not in_flight and not self._probe.finds():
            return None
        wanted = Wanted(
            buckets=self._buckets,
            rows=rows,
            rows_per_bucket=self._share.of(rows),
            batch_bytes=size,
            largest_bytes=self._largest,
            held_topics=held,
            hot_keys=self._hot(),
        )
        found = self._marks.mark(wanted, self._leader(generation))
        self._share.learn(len(found), rows, len(self._buckets))
        self._buckets = self._buckets[_TURN % len(self._buckets) :] + self._buckets[: _TURN % len(self._buckets)]
        if not found:
            return None
        if taken := {row[0] for row in found}.intersection(in_flight):
            # Sent once more, they would come behind their followers.
            raise DatabaseLost(
                f"{len(taken)} rows that this shard had marked were marked by another: an older attempt at it is still "
                "at work, and the shard starts over"
            )
        return read_of(found)

    def close(self) -> None:
        """Close the session."""
        self._session.close()
