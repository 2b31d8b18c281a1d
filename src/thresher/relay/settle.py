"""Executes the fates of a committed progress record in the outbox: the only way in which a row leaves it.

Idempotent: after a crash, recovery settles the same record again, and never sends its rows again.
"""

from collections.abc import Callable
from uuid import UUID

from thresher.db.outbox_store import DeadFate, Fates
from thresher.db.outbox_store import Settlement as StoreSettlement
from thresher.delivery.fate import Dead
from thresher.relay.protocol.progress import Progress


class Settlement:
    """Settles progress records over one session of the store."""

    def __init__(self, store: StoreSettlement) -> None:
        self._store = store

    def execute(self, progress: Progress, middle: Callable[[], None] = lambda: None, mark: UUID | None = None) -> int:
        """Settle one record in one durable transaction; return how many of its rows were still there.

        With a mark, rows that were sent are removed only if they carry it. `middle` is called inside the transaction,
        when part of it is done and nothing is durable.
        """
        return self._store.settle(fates_of(progress), mark=mark, middle=middle)

    def require_gone(self, progress: Progress, mark: UUID | None = None, *, recovering: bool = False) -> None:
        """Raise `DatabaseRefused` if rows that were settled are still pending: they would be sent again and again.

        With a mark, rows that another process has marked meanwhile do not count. In recovery, dead rows do not count:
        an older attempt may have marked one during the settling, which then missed it. It is judged again later.
        """
        rows: Fates | Progress = fates_of(progress) if recovering else progress
        self._store.require_gone(rows.ids, rows.create_times, mark=mark)

    def lacks(self, progress: Progress) -> int:
        """Return how many rows of a settled record are gone: neither stamped, by any process, nor dead."""
        return len(progress.ids) - self._store.settled(progress.ids, progress.create_times)


def fates_of(progress: Progress) -> Fates:
    """Return a record's fates as the store takes them: rows to remove, and dead rows with their reasons."""
    if progress.all_sent:
        return Fates(ids=progress.ids, create_times=progress.create_times)
    ids, times, dead = [], [], []
    for id_, time, fate in zip(progress.ids, progress.create_times, progress.fates, strict=True):
        if isinstance(fate, Dead):
            dead.append(DeadFate(id_, time, *fate))
        else:
            ids.append(id_)
            times.append(time)
    return Fates(ids=ids, create_times=times, dead=dead)
