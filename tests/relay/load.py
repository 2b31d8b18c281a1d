"""Writers on an outbox while a relay works, and the verdict on their rows."""

import secrets
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self

import psycopg

from tests.processes import eventually
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.testing.checker import Verdict, check
from thresher.testing.history import read_history
from thresher.testing.pump import Fleet, Plan, Tally
from thresher.testing.reading import read_topics, rows_held

# The time for writers to finish a transaction that waits.
_STOP_SECONDS = 120.0


class Loaded(Protocol):
    """An outbox to write to, and the topic of its rows."""

    dsn: str
    stack: Stack
    table: TableName
    topic: str

    def pending(self) -> int:
        """Return the number of pending rows."""


class Load:
    """Writes until it is stopped. A context manager: leaving it stops it."""

    def __init__(self, place: Loaded, directory: Path, **plan: Any) -> None:
        run = secrets.token_hex(4)
        self._place = place
        self.history = directory / f"history-{run}.jsonl"
        settings: dict[str, Any] = {
            "records": 10_000_000, "keys": 60, "writers": 2, "transaction_rows": 5, "rollback_share": 0.1,
            "rate": 200.0, "skew": 0.3, "varied": 0.1, "started": datetime.now(UTC),
            "patience_seconds": 120.0,
        }  # fmt: skip
        self.plan = Plan(
            dsn=place.dsn,
            table=place.table.table,
            topic=place.topic,
            run=run,
            history=self.history,
            **{**settings, **plan},
        )
        self._fleet = Fleet(self.plan)
        self._tally: Tally | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._tally = self._fleet.run()
        except BaseException as error:  # noqa: BLE001 - raised again when the load ends
            self._error = error

    def stop(self) -> None:
        """Stop writing. Idempotent."""
        self._fleet.stop()
        self._thread.join(_STOP_SECONDS)

    def finish(self, seconds: float) -> None:
        """Wait until all its records are written."""
        self._thread.join(seconds)
        assert self.tally.rows, "nothing was written"

    def end(self, seconds: float = 120.0) -> None:
        """Stop writing, and wait until the outbox has no pending rows."""
        self.stop()
        eventually(lambda: self._place.pending() == 0, seconds, lambda: f"{self._place.pending()} rows are left")

    @property
    def tally(self) -> Tally:
        """The counts of what was written, once the load has ended."""
        if self._tally is None:
            raise AssertionError("the load has not ended, or ended with an error") from self._error
        return self._tally

    def verdict(self, *, everything: bool = False) -> Verdict:
        """Compare what was written with the records of readers of committed records, and with the database.

        `everything`: with those of readers of all records. There, a record may repeat, before the next of its key.
        """
        return judged(self._place, [self.history], topics=self.plan.topic_names, everything=everything)

    def require_clean(self, least: int, *, everything: bool = False) -> Verdict:
        """Check that every row arrived once, in order, that none is dead, and that at least `least` were written."""
        verdict = self.verdict(everything=everything)
        assert verdict.ok, (verdict.line(), verdict.examples)
        assert not verdict.dead
        assert self.tally.committed >= least, self.tally
        return verdict


def judged(
    place: Loaded, histories: Iterable[Path], *, topics: Sequence[str] = (), everything: bool = False
) -> Verdict:
    """Compare what these histories say was written with the records of readers, and with the database."""
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        held = rows_held(connection, place.table)
    reads = read_topics(place.stack.kafka.bootstrap, topics or [place.topic], uncommitted=everything)
    transactions = [each for history in histories for each in read_history(history)]
    return check(transactions, reads, dead=held.dead, pending=held.pending, repeats_allowed=everything)
