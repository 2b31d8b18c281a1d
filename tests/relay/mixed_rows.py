"""Additional rows of a random soak, beside the load: bad rows, large ones, rows that a transform rejects, late commits.

All are in the same history. In the end, exactly the rows that can never be sent must be dead.
"""

import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.mix.agenda import Agenda
from tests.relay.subject import NAME, TOPIC
from tests.relay.transforms import FAILING, FILTERED
from thresher.outbox import Message
from thresher.testing.history import IDENTITY_HEADER, Content, HistoryWriter, Outcome, identity
from thresher.testing.record import content_of

WIDE, OTHER = f"{NAME}.wide", f"{NAME}.other"
LARGE_BYTES = 30_000
_LATE_ROWS = 20
_RUN = "extra"
_COPY = (
    "COPY outbox (kafka_topic, kafka_key, kafka_value, kafka_partition, kafka_timestamp, kafka_header_keys,"
    " kafka_header_values) FROM STDIN"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An additional row."""

    topic: str = TOPIC
    key: str | None = None
    value: bytes = b"extra"
    partition: int | None = None
    timestamp: datetime | None = None
    # `bad`: it can never be sent. `doubtful`: that depends on the limits and the relay at the time of sending.
    bad: bool = False
    doubtful: bool = False

    def content(self) -> Content:
        """Return the row's content for the history."""
        return content_of(
            Message(topic=self.topic, value=self.value, partition=self.partition, timestamp=self.timestamp)
        )


_BAD = (
    Extra(topic="not a topic", bad=True),
    Extra(partition=99, bad=True),
    Extra(value=bytes(1_100_000), bad=True),
    Extra(topic="..", bad=True),
    # A timestamp of the row itself, not one that a wrong clock has set.
    Extra(timestamp=datetime(2400, 1, 1, tzinfo=UTC), bad=True),
)


class Rows:
    """Writes the additional rows, and knows which of them must be dead in the end.

    `own_keys`: they share no key with the load, since a late commit may be read between a record and its repeat.
    Without `large`, no row is stored out of line (TOAST).
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        history: Path,
        *,
        own_keys: bool,
        large: bool,
        agenda: Agenda,
    ) -> None:
        self._connect, self._agenda = connect, agenda
        self._history = HistoryWriter(history, _RUN)
        self._prefix = "extra" if own_keys else "key"
        self._bad = [extra for extra in _BAD if large or len(extra.value) < LARGE_BYTES]
        self._numbers, self._transactions = itertools.count(), itertools.count()
        self._extras: dict[str, Extra] = {}

    def key(self, number: int) -> str:
        """Return one of a few keys."""
        return f"{self._prefix}-{number:x}"

    def stash(self, extras: Iterable[Extra]) -> None:
        """Insert rows and commit."""
        self._insert(self._connect(), list(extras))()

    @property
    def doubtful(self) -> frozenset[str]:
        """The rows that may be sent or dead."""
        return frozenset(name for name, extra in self._extras.items() if extra.doubtful)

    @property
    def filtered(self) -> frozenset[str]:
        """The rows that a transform filters, if the relay has one."""
        return frozenset(name for name, extra in self._extras.items() if extra.value == FILTERED)

    def wrong(self, dead: Collection[str], committed: Collection[str]) -> list[str]:
        """Return a line for each row that is dead without a reason, and for each that should be dead and is not."""
        bad = {name for name, extra in self._extras.items() if extra.bad}
        unfounded = sorted(set(dead) - bad - self.doubtful)[:20]
        missing = sorted((bad & set(committed)) - set(dead))[:20]
        return [
            *(f"{name} is dead without a reason: {self._extras.get(name)}" for name in unfounded),
            *(f"{name} should be dead: {self._extras[name]}" for name in missing),
        ]

    # Faults

    def bad_rows(self, rows: int) -> None:
        for number in range(rows):
            good = Extra(key=self.key(number))
            self.stash([good, replace(self._bad[number % len(self._bad)], key=good.key), good])

    def large_rows(self, rows: int) -> None:
        self.stash(Extra(key=self.key(number), value=os.urandom(LARGE_BYTES), doubtful=True) for number in range(rows))

    def choosy_rows(self, rows: int) -> None:
        """Write rows on which a transform fails, or which it filters, if the relay has one."""
        for number in range(rows):
            good = Extra(key=self.key(number))
            self.stash([good, replace(good, value=(FAILING, FILTERED)[number % 2], doubtful=number % 2 == 0), good])

    def long_transaction(self, seconds: float) -> None:
        """Write a row that commits late, in a transaction with an old snapshot; then another row of its key."""
        connection = self._connect()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        late = [Extra(key=f"late-{next(self._numbers)}", topic=OTHER)]
        self._agenda.later(seconds, "late commit", self._insert(connection, late))
        self._agenda.later(seconds, "its follower", lambda: self.stash(late))

    def burst(self, rows: int, seconds: float) -> None:
        """Write rows that commit late among many others, and later rows of their keys.

        1. A transaction inserts the late rows and stays open. 2. Many other rows commit, and a relay reads past the
        late ones. 3. The late rows commit, then their followers, then as many others again. A window must end before
        the followers.
        """
        late = [Extra(key=f"late-{next(self._numbers)}") for _ in range(_LATE_ROWS)]
        commit = self._insert(self._connect(), late)
        # The order of these calls is the order of the actions.
        self._agenda.later(seconds, "late commit", commit)
        self._agenda.later(seconds, "followers", lambda: self.stash(late))
        self._agenda.later(seconds, "rest of the burst", lambda: self._stash_many(rows))
        self._stash_many(rows)

    def write(self, connection: psycopg.Connection[Any], rows: Iterable[Sequence[Any]]) -> None:
        """Write rows, each with topic, key, value, partition, time, names and values of headers; do not commit."""
        with connection.cursor().copy(_COPY) as copy:
            for row in rows:
                copy.write_row(row)

    def _stash_many(self, rows: int) -> None:
        # In one transaction: a relay that keeps up with single rows reads no window.
        self.stash(Extra(key=self.key(number)) for number in range(rows))

    def _insert(self, connection: psycopg.Connection[Any], extras: list[Extra]) -> Callable[[], None]:
        """Insert rows, and return a function that commits them and notes the outcome."""
        number = next(self._transactions)
        named = [(next(self._numbers), extra) for extra in extras]
        self._extras.update({identity(_RUN, 0, row): extra for row, extra in named})
        rows = [(row, extra.key) for row, extra in named]
        self._history.begin(0, number, time.monotonic_ns(), rows, [extra.content() for _, extra in named])

        def note(outcome: Outcome) -> None:
            connection.close()
            self._history.end(0, number, time.monotonic_ns(), outcome)

        def commit() -> None:
            try:
                connection.commit()
            except psycopg.Error:
                # The connection was lost before or during the commit: the outcome is noted as unknown.
                note(Outcome.UNKNOWN)
            else:
                note(Outcome.COMMITTED)

        try:
            self.write(connection, [_values(row, extra) for row, extra in named])
        except psycopg.Error:
            note(Outcome.ROLLED_BACK)
            raise
        return commit


def _values(row: int, extra: Extra) -> list[Any]:
    key = None if extra.key is None else extra.key.encode()
    marks = [IDENTITY_HEADER], [identity(_RUN, 0, row).encode()]
    return [extra.topic, key, extra.value, extra.partition, extra.timestamp, *marks]
