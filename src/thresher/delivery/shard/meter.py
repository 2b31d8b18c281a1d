"""Counts what a shard does. A transaction costs a few additions, however many rows it has; no row costs anything.

Every figure has one writer: those of settling are the settler's thread's, all others the task's own. So nothing but
`in_flight` is locked, and no addition is lost.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thresher.core.errors import kind_of
from thresher.delivery.fate import Dead, Filtered, Sent
from thresher.delivery.progress import RowProgress
from thresher.delivery.row import Rows
from thresher.delivery.shard.in_flight import InFlight
from thresher.kafka.refusal import fenced
from thresher.observe.histogram import Scale
from thresher.observe.tally import Counts, Tally

BATCH = Scale("batch_records", (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000))
_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PUBLISH = Scale("publish_seconds", _STEP_SECONDS)
SETTLE = Scale("settle_seconds", _STEP_SECONDS)
END_TO_END = Scale(
    "end_to_end_seconds",
    (0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400),
)
# Of a transaction's rows, so many are looked at for their age; each stands for its neighbours.
_MOST_LOOKED_AT = 16


class Meter:
    """Counts for one attempt at one shard."""

    def __init__(
        self,
        tally: Tally,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        report: Callable[..., None] = lambda _name, **_fields: None,
        waves: bool = False,
    ) -> None:
        """`report` takes events by name, with fields. `waves`: a transaction has one row of a key at most."""
        self._tally, self._report = tally, report
        self.in_flight = InFlight(tally, by_key=waves)
        self._monotonic = monotonic
        self._began: float | None = None

    def recovered(self) -> None:
        """What the last owner left has been settled: from here on the shard relays."""
        self._tally.gauge("relaying", 1)

    def strangers(self, records: int) -> None:
        """Recovery found so many records among the progress that this relay did not write, and left them out."""
        if records:
            self._tally.count("strangers", records)
            self._report("strangers", records=records)

    def begun(self) -> None:
        """A transaction was opened."""
        self._began = self._monotonic()

    def sent(self, rows: Rows) -> None:
        """The records among these rows are handed to the client."""
        self.in_flight.sent(rows.keys)

    def forgotten(self) -> None:
        """Nothing that was sent and is not settled counts any more."""
        self.in_flight.forget()

    def in_doubt(self, problem: Exception, why: str) -> None:
        """A producer is given up, and recovery finds out what became of its transaction."""
        count_error(self._tally, problem)
        self._report("in doubt", why=why)

    def committed(self, progress: Any, rows: Rows, now_us: int | None) -> None:
        """Count what a committed transaction carried, and report which rows it set aside."""
        self.published(progress, rows, now_us)
        if not progress.all_sent:
            fates = zip(progress.ids, progress.fates, strict=True)
            dead = [(id_, fate) for id_, fate in fates if isinstance(fate, Dead)]
            if dead:
                self._report("dead", rows=len(dead), first=dead[0][0], why=dead[0][1].reason)

    def published(self, progress: RowProgress, rows: Rows, now_us: int | None) -> None:
        """The transaction was committed that carries these rows; `now_us` is the time by the database's clock."""
        count, fates = self._tally.count, progress.fates
        count("transactions")
        if not fates:
            return
        BATCH.observe(self._tally, len(fates))
        if self._began is not None:
            PUBLISH.observe(self._tally, self._monotonic() - self._began)
        sent_times: Sequence[int] = progress.create_times
        if not progress.all_sent:
            sent_times = [moment for moment, fate in zip(sent_times, fates, strict=True) if isinstance(fate, Sent)]
            self._count_unsent(progress)
        count("relayed", len(sent_times))
        count("relayed_bytes", rows.size)
        if now_us is not None:
            for place, weight in shares(len(sent_times)):
                END_TO_END.observe(self._tally, max(0, now_us - sent_times[place]) / 1_000_000, weight)

    def settled(self, seconds: float) -> None:
        """A committed transaction's fates were executed in the table. For the settler's thread."""
        SETTLE.observe(self._tally, seconds)
        self.in_flight.settled()

    def _count_unsent(self, progress: RowProgress) -> None:
        filtered = 0
        for fate in progress.fates:
            if isinstance(fate, Dead):
                self._tally.count("dead")
                self._tally.count(f"dead.{fate.kind}")
            else:
                filtered += isinstance(fate, Filtered)
        if filtered:
            self._tally.count("filtered", filtered)


def counting_errors(step: Callable[..., None]) -> Callable[..., None]:
    """Make a last step of a pipeline count what ends it, its own errors and those of the steps before it."""

    @functools.wraps(step)
    def counted(shard: Tally, *arguments: Any) -> None:
        try:
            step(shard, *arguments)
        except Exception as error:
            count_error(shard, error)
            raise

    return counted


def count_error(tally: Counts, error: BaseException) -> None:
    """Count an error by its kind, and a fence if the broker's epoch was the reason."""
    tally.count(f"errors.{kind_of(error)}")
    if fenced(error):
        tally.count("fences.broker")


def shares(count: int, most: int = _MOST_LOOKED_AT) -> Iterator[tuple[int, int]]:
    """Yield places evenly spread among so many rows, each with how many it stands for; together, for all of them."""
    parts = min(count, most)
    for part in range(parts):
        start, end = part * count // parts, (part + 1) * count // parts
        yield (start + end) // 2, end - start
