"""Counts a shard's work. A transaction costs a few additions, however many rows it has.

Each figure is written by one thread: those of settling by the settler's, all others by the task's own. So only
`in_flight` needs a lock, and no addition is lost.
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
from thresher.observe.figure_sink import CountSink, FigureSink
from thresher.observe.histogram import Scale

BATCH = Scale("batch_records", (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000))
_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PUBLISH = Scale("publish_seconds", _STEP_SECONDS)
SETTLE = Scale("settle_seconds", _STEP_SECONDS)
END_TO_END = Scale(
    "end_to_end_seconds",
    (0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400),
)
# Rows of a transaction whose age is measured; each stands for its neighbours.
_MAX_SAMPLES = 16


class Meter:
    """Counts for one attempt at one shard."""

    def __init__(
        self,
        figures: FigureSink,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        report: Callable[..., None] = lambda _name, **_fields: None,
        waves: bool = False,
    ) -> None:
        """`report` takes events by name, with fields. `waves`: a transaction has at most one row of a key."""
        self._figures, self._report = figures, report
        self.in_flight = InFlight(figures, by_key=waves)
        self._monotonic = monotonic
        self._began: float | None = None

    def recovered(self) -> None:
        """Note that the shard has recovered, and relays from now on."""
        self._figures.gauge("relaying", 1)

    def foreign_records(self, records: int) -> None:
        """Count records on the progress topic that this relay did not write. Recovery has ignored them."""
        if records:
            self._figures.count("strangers", records)
            self._report("strangers", records=records)

    def begun(self) -> None:
        """Note that a transaction was opened."""
        self._began = self._monotonic()

    def sent(self, rows: Rows) -> None:
        """Note that the records of these rows are handed to the client."""
        self.in_flight.sent(rows.keys)

    def forgotten(self) -> None:
        """Note that a new producer begins: nothing is in flight any more."""
        self.in_flight.forget()

    def in_doubt(self, problem: Exception, why: str) -> None:
        """Count the error for which a producer is discarded. Recovery finds out whether its transaction committed."""
        count_error(self._figures, problem)
        self._report("in doubt", why=why)

    def committed(self, progress: Any, rows: Rows, now_us: int | None) -> None:
        """Count the rows of a committed transaction, and report the dead ones."""
        self.published(progress, rows, now_us)
        if not progress.all_sent:
            fates = zip(progress.ids, progress.fates, strict=True)
            dead = [(id_, fate) for id_, fate in fates if isinstance(fate, Dead)]
            if dead:
                self._report("dead", rows=len(dead), first=dead[0][0], why=dead[0][1].reason)

    def published(self, progress: RowProgress, rows: Rows, now_us: int | None) -> None:
        """Count the rows of a committed transaction. `now_us` is the time by the database's clock."""
        count, fates = self._figures.count, progress.fates
        count("transactions")
        if not fates:
            return
        BATCH.observe(self._figures, len(fates))
        if self._began is not None:
            PUBLISH.observe(self._figures, self._monotonic() - self._began)
        sent_times: Sequence[int] = progress.create_times
        if not progress.all_sent:
            sent_times = [moment for moment, fate in zip(sent_times, fates, strict=True) if isinstance(fate, Sent)]
            self._count_unsent(progress)
        count("relayed", len(sent_times))
        count("relayed_bytes", rows.size)
        if now_us is not None:
            for place, weight in shares(len(sent_times)):
                END_TO_END.observe(self._figures, max(0, now_us - sent_times[place]) / 1_000_000, weight)

    def settled(self, seconds: float) -> None:
        """Note that a committed transaction was settled. For the settler's thread."""
        SETTLE.observe(self._figures, seconds)
        self.in_flight.settled()

    def _count_unsent(self, progress: RowProgress) -> None:
        filtered = 0
        for fate in progress.fates:
            if isinstance(fate, Dead):
                self._figures.count("dead")
                self._figures.count(f"dead.{fate.kind}")
            else:
                filtered += isinstance(fate, Filtered)
        if filtered:
            self._figures.count("filtered", filtered)


def counting_errors(step: Callable[..., None]) -> Callable[..., None]:
    """Decorate the last step of a pipeline to count the error that ends it, its own or one of an earlier step."""

    @functools.wraps(step)
    def counted(shard: FigureSink, *arguments: Any) -> None:
        try:
            step(shard, *arguments)
        except Exception as error:
            count_error(shard, error)
            raise

    return counted


def count_error(figures: CountSink, error: BaseException) -> None:
    """Count an error by its kind, and also as a fence if the broker fenced the producer."""
    figures.count(f"errors.{kind_of(error)}")
    if fenced(error):
        figures.count("fences.broker")


def shares(count: int, most: int = _MAX_SAMPLES) -> Iterator[tuple[int, int]]:
    """Yield evenly spread places among `count` rows, each with the number of rows it stands for: `count` in all."""
    parts = min(count, most)
    for part in range(parts):
        start, end = part * count // parts, (part + 1) * count // parts
        yield (start + end) // 2, end - start
