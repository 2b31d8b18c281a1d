"""Writers on an outbox while a relay is at work, and the verdict on what became of their rows."""

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

# Writers have this long for a transaction that waits.
_STOP_SECONDS = 120.0


class Loaded(Protocol):
    """An outbox that can be written to, and the topic that its rows are for."""

    dsn: str
    stack: Stack
    table: TableName
    topic: str

    def pending(self) -> int:
        """How many rows wait."""


class Load:
    """A load until it is ended. A context manager: leaving it ends it."""

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
        except BaseException as error:  # noqa: BLE001 - raised again by whoever ends the load
            self._error = error

    def stop(self) -> None:
        """Stop writing. Harmless the second time."""
        self._fleet.stop()
        self._thread.join(_STOP_SECONDS)

    def finish(self, seconds: float) -> None:
        """Wait until all its records are written."""
        self._thread.join(seconds)
        assert self.tally.rows, "nothing was written"

    def end(self, seconds: float = 120.0) -> None:
        """Stop writing, and wait until nothing is left in the outbox."""
        self.stop()
        eventually(lambda: self._place.pending() == 0, seconds, lambda: f"{self._place.pending()} rows are left")

    @property
    def tally(self) -> Tally:
        """What was written, once the load has ended."""
        if self._tally is None:
            raise AssertionError("the load has not ended, or ended with an error") from self._error
        return self._tally

    def verdict(self, *, everything: bool = False) -> Verdict:
        """Hold what readers of committed records get, and what the database still has, against what was written.

        `everything`: what readers of all records get, who may get one again, directly behind itself within its key.
        """
        return judged(self._place, [self.history], topics=self.plan.topic_names, everything=everything)

    def require_clean(self, least: int, *, everything: bool = False) -> Verdict:
        """See that every row arrived once, in order, that none is dead, and that so many were written at least."""
        verdict = self.verdict(everything=everything)
        assert verdict.ok, (verdict.line(), verdict.examples)
        assert not verdict.dead
        assert self.tally.committed >= least, self.tally
        return verdict


def judged(
    place: Loaded, histories: Iterable[Path], *, topics: Sequence[str] = (), everything: bool = False
) -> Verdict:
    """Hold what readers get, and what the database still has, against all that these histories say was written."""
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        held = rows_held(connection, place.table)
    reads = read_topics(place.stack.kafka.bootstrap, topics or [place.topic], uncommitted=everything)
    transactions = [each for history in histories for each in read_history(history)]
    return check(transactions, reads, dead=held.dead, pending=held.pending, repeats_allowed=everything)
