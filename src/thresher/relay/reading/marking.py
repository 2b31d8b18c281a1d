"""Marks and reads the oldest rows without the shard's mark, for delivery at least once.

1. One statement marks rows and checks the term, so a superseded leader marks nothing. An older attempt under the same
   term may still mark. Then a row comes back that this attempt has marked before, and the shard starts over.
2. A mark need not be durable, and costs no flush to disk: if the database forgets it, it was restarted, and the shard
   starts over.
3. If transforms may change keys, rows are marked by id over all buckets, and no key is left out.
4. A sweeper marks only rows of a minimum age, and none that a dispatcher has locked.
"""

import uuid
from collections.abc import Callable, Collection

import pyarrow as pa

from thresher.db.control import require_same
from thresher.db.outbox_store import Wanted
from thresher.db.problem import DatabaseLost
from thresher.delivery.reading.row_source import ReadRequest
from thresher.delivery.stored_rows import FewRows, read_of
from thresher.relay.reading.pending_rows import largest_row
from thresher.relay.reading.scan_plan import ScanPlan
from thresher.relay.settings import ShardAssignment
from thresher.relay.store import store_of

# Buckets take turns at being asked first: the list is rotated by a number that is coprime with its length.
_TURN = 7


class Marking:
    """Marks rows as it reads them, over a session of its own. For one thread."""

    def __init__(
        self,
        assignment: ShardAssignment,
        application: str,
        buckets: Collection[int],
        since: str,
        leader: Callable[[int], uuid.UUID],
        hot: Callable[[], Collection[tuple[str, bytes]]],
    ) -> None:
        settings = assignment.settings
        self._buckets = list(buckets)
        self._leader, self._hot = leader, hot
        self._largest = largest_row(settings)
        self._by_id = bool(settings.transform)
        self._min_age = settings.limits.min_age_seconds if settings.sweeps else None
        store = store_of(settings)
        self._session = store.session(application, durable=False)
        try:
            found = self._session.incarnation()
            require_same(found.since, since)
            self._marks = self._session.marks(settings.name, assignment.term, table=found.table)
            self._probe = self._session.probe(self._buckets)
        except BaseException:
            self._session.close()
            raise
        self._plan = ScanPlan(len(self._buckets), windows=False, by_id=self._by_id)

    def read(self, request: ReadRequest) -> pa.RecordBatch | FewRows | None:
        """Mark at most the requested rows and bytes, and return them by id; None if there are none."""
        if not request.in_flight and not self._probe.occupied():
            return None
        wanted = Wanted(
            buckets=self._buckets,
            rows=request.rows,
            rows_per_bucket=self._plan.each(request.rows),
            by_id=self._by_id,
            batch_bytes=request.bytes,
            largest_bytes=self._largest,
            held_topics=request.held,
            among=request.among,
            in_flight=request.held_rows,
            # With transforms no key can be left out: rows of another stored key may be sent with the same key.
            hot_keys=() if self._by_id else (*self._hot(), *request.held_keys),
            min_age_seconds=self._min_age,
        )
        found = self._marks.mark(wanted, self._leader(request.generation))
        self._plan.learn_share(len(found), len(self._buckets), request.rows)
        self._buckets = self._buckets[_TURN % len(self._buckets) :] + self._buckets[: _TURN % len(self._buckets)]
        if not found:
            return None
        if taken := {row[0] for row in found}.intersection(request.in_flight):
            # If they were sent again, they would come after later rows of their keys.
            raise DatabaseLost(
                f"{len(taken)} rows that this shard had marked were marked by another process: an older attempt at the "
                "shard is still at work, so the shard starts over"
            )
        return read_of(found)

    def close(self) -> None:
        """Close the session."""
        self._session.close()
