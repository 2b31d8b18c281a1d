"""Sends stored messages right after the application's commit, and stamps them. A sweeper sends the rows that are left.

1. **Lock** the receipts' rows over the dispatcher's own connection. Only rows are locked that are committed, unstamped
   and not taken by another sender; before the commit and after a rollback there are none. Refused if the relay is no
   sweeper. A crash here frees the rows.
2. **Send** them by one idempotent producer with acks=all, in the order in which they were stashed, and wait for the
   answers. After a crash here, rows may be in Kafka without a stamp: the sweeper sends them again.
3. **Stamp** the acked rows in one statement, and commit, which frees the rows. A crash before the commit is as in
   step 2; after the commit nothing is left to do.

A failure of a broker or of the database raises nothing: `Cleared` tells how many rows are left to the sweeper. After a
failure there is a cool-down, so that calls do not wait for a server that is down: for a topic if its brokers did not
answer, for everything if the database failed.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError

from thresher.core.errors import InvalidInput, shorten
from thresher.core.fork_safe_lock import ForkSafeLock
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.kafka.refusal import is_refusal
from thresher.outbox.message import Message
from thresher.outbox.receipt import Receipt
from thresher.outbox.shape import Shape
from thresher.outbox.writer import Outbox
from thresher.publisher.dispatch_table import Connect, DispatchTable, LockedRow, NotNow, Version
from thresher.publisher.kafka_backend import KafkaBackend

logger = logging.getLogger(__name__)

# Rows that are locked and sent together.
_ROWS = 500
# A dispatcher that became unreachable keeps its rows locked for its time-out and this much longer.
_LATE_SECONDS = 20.0
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """The outcome of a call. Each receipt is counted once."""

    # In Kafka, and stamped.
    sent: int = 0
    # Not for this call to send: not committed, already stamped or deleted, or taken by another sender.
    skipped: int = 0
    # Not in Kafka. The sweeper sends them, or moves them to the dead-letter table.
    not_sent: int = 0
    # Perhaps in Kafka, and not stamped. The sweeper sends them, perhaps again.
    unknown: int = 0
    # Some of the reasons why rows are left to the sweeper.
    reasons: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """How many rows are left to the sweeper."""
        return self.not_sent + self.unknown

    def __add__(self, other: "Cleared") -> "Cleared":
        return Cleared(
            sent=self.sent + other.sent,
            skipped=self.skipped + other.skipped,
            not_sent=self.not_sent + other.not_sent,
            unknown=self.unknown + other.unknown,
            reasons=tuple(dict.fromkeys((*self.reasons, *other.reasons)))[:_NAMED],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The brokers' answers for the locked rows: the ids to stamp, and the other rows."""

    acked: Sequence[int]
    not_sent: int
    unknown: int
    reasons: tuple[str, ...]
    # Topics and keys with a row that is left to the sweeper: no later row of the key may overtake it.
    left: frozenset[tuple[str, Any]]
    # Topics with a row for which the brokers did not answer.
    silent: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The outcome of one part of a call, and the keys that are left. After a failed part nothing more is sent."""

    cleared: Cleared
    left: frozenset[tuple[str, Any]] = frozenset()
    failed: bool = False


def judged(
    rows: Sequence[LockedRow], errors: Mapping[int, KafkaError | None], resting: Collection[str | None] = ()
) -> Answers:
    """Decide which rows are stamped. `errors` has the answer for each row that was sent.

    Rows of topics in a cool-down (`resting`) were not sent.
    """
    acked: list[int] = []
    left: set[tuple[str, Any]] = set()
    silent: set[str] = set()
    reasons: dict[str, None] = {}
    not_sent = unknown = 0
    for row in rows:
        message = row.message
        error = errors.get(row.id)
        if row.id in errors and error is None:
            acked.append(row.id)
            continue
        if error is None or is_refusal(error):
            not_sent += 1
        else:
            unknown += 1
            if message is not None:
                silent.add(message.topic)
        if message is not None:
            left.add((message.topic, message.key))
        reasons[_reason(message, error, resting)] = None
    return Answers(
        acked=acked,
        not_sent=not_sent,
        unknown=unknown,
        reasons=tuple(reasons)[:_NAMED],
        left=frozenset(left),
        silent=frozenset(silent),
    )


def _reason(message: Message | None, error: KafkaError | None, resting: Collection[str | None]) -> str:
    if message is None:
        return "a row can never be sent as it is stored: the sweeper moves it to the dead rows"
    if error is None and message.topic in resting:
        return f"{message.topic}: its brokers did not answer a moment ago"
    if error is None:
        return f"{message.topic}: an earlier row of key {shorten(message.key)} is left to the sweeper"
    return f"{message.topic}: {error.str()}"


class Dispatcher:
    """Sends the messages of receipts. Safe from any thread. As a context manager, it closes itself.

    The outbox must be in Thresher's own shape, and its relay must run with `dispatch: immediate`.
    """

    def __init__(
        self,
        connect: Connect,
        kafka: Mapping[str, Any],
        *,
        outbox: Outbox | None = None,
        timeout_seconds: float = 5.0,
        rest_seconds: float = 5.0,
        connections: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connect` opens a connection for the dispatcher; `kafka` are the properties of its producer.

        After `timeout_seconds` a call sends nothing more. It waits at most that long for the answers to what it sent.
        `rest_seconds` is the cool-down: a topic whose brokers did not answer is left to the sweeper for this time, and
        so is everything after the database failed. So servers that are down do not slow the application down.
        Concurrent calls share at most `connections` connections. Raises `InvalidInput` for wrong producer properties.
        """
        outbox = outbox or Outbox()
        if not outbox.keeps_rows:
            raise InvalidInput(f"{outbox.name} keeps no rows for a dispatcher to lock and stamp: a tail sends them")
        if outbox.shape is not Shape.THRESHER:
            raise InvalidInput(
                f"a dispatcher stamps rows, and shape {outbox.shape.value} has no column for that: use shape thresher"
            )
        if timeout_seconds < 0.1 or rest_seconds < 0 or connections < 1:
            raise InvalidInput(
                "timeout_seconds must be at least 0.1, rest_seconds at least 0, and connections at least 1"
            )
        self._outbox = outbox.name
        self._table = DispatchTable(
            connect, outbox.name, connections=connections, idle_seconds=timeout_seconds + _LATE_SECONDS
        )
        bounds = {
            "message.timeout.ms": int(timeout_seconds * 1000),
            # How long the client waits for an unknown topic.
            "topic.metadata.propagation.max.ms": min(1000, int(timeout_seconds * 1000)),
        }
        given = {name: value for name, value in kafka.items() if name != "delivery.timeout.ms"}
        self._kafka = KafkaBackend({**given, **bounds}, waits=True)
        self._kafka.check()
        self._timeout_seconds, self._rest_seconds, self._clock = timeout_seconds, rest_seconds, clock
        # The end of each topic's cool-down. None stands for everything, after the database failed.
        self._rests: dict[str | None, float] = {}
        self._lock = ForkSafeLock()

    def __enter__(self) -> "Dispatcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self, receipts: Iterable[Receipt | None]) -> Cleared:
        """Send the messages of receipts, and stamp their rows. Call it after the commit; earlier, it finds no rows.

        Messages of a key are sent in the order in which they were stashed. None, which `stash` returns in a pipeline,
        is left to the sweeper. Raises `InvalidInput` for a receipt of another outbox, and `DispatchRefused` if the
        relay is no sweeper.
        """
        cleared, left = Cleared(), frozenset[tuple[str, Any]]()
        versions = self._versions(receipts)
        until = self._clock() + self._timeout_seconds
        for first in range(0, len(versions), _ROWS):
            if first and self._clock() >= until:
                why = f"the call took {self._timeout_seconds:g} seconds: clear fewer receipts, or raise timeout_seconds"
                cleared += Cleared(not_sent=len(versions) - first, reasons=(why,))
                break
            part = self._clear(versions[first : first + _ROWS], left, until)
            cleared += part.cleared
            left |= part.left
            if part.failed:
                # Rows of later parts would overtake those of this one.
                cleared += Cleared(not_sent=max(0, len(versions) - first - _ROWS))
                break
        if cleared.left:
            logger.warning(
                "rows are left to the sweeper: %s", "; ".join(cleared.reasons), extra={"rows": cleared.left}
            )  # fmt: skip
        return cleared

    def close(self) -> None:
        """Close the producer and the connections. Idempotent."""
        self._kafka.close()
        self._table.close()

    def _versions(self, receipts: Iterable[Receipt | None]) -> list[Version]:
        versions: dict[int, Version] = {}
        given: Iterable[Any] = receipts
        for receipt in given:
            if receipt is None:
                continue
            if not isinstance(receipt, Receipt) or receipt.table != self._outbox:
                raise InvalidInput(f"a receipt of {self._outbox} is needed, not {shorten(receipt)}")
            versions[receipt.id] = (receipt.id, receipt.create_time)
        return sorted(versions.values())

    def _clear(self, versions: Sequence[Version], left: frozenset[tuple[str, Any]], until: float) -> _Part:
        """Clear some receipts, except those of keys with a row that is left to the sweeper."""
        answers: Answers | None = None
        try:
            # Checked before and after the wait for a connection.
            self._require_awake()
            within_seconds = until - self._clock()
            with self._table.locked(versions, within_seconds=within_seconds, ready=self._require_awake) as (
                rows,
                stamp,
            ):
                answers = self._send(rows, left)
                stamped = stamp(answers.acked) if answers.acked else 0
        except NotNow as why:
            return _Part(cleared=Cleared(not_sent=len(versions), reasons=(str(why),)), failed=True)
        except (DatabaseLost, DatabaseRefused) as error:
            self._rest(None)
            return _Part(cleared=_failed(len(versions), answers, error), failed=True)
        answers = _stamped(answers, stamped)
        return _Part(
            cleared=Cleared(
                sent=stamped,
                skipped=len(versions) - len(rows),
                not_sent=answers.not_sent,
                unknown=answers.unknown,
                reasons=answers.reasons,
            ),
            left=answers.left,
        )

    def _send(self, rows: Sequence[LockedRow], left: frozenset[tuple[str, Any]]) -> Answers:
        resting = self._resting()
        sent = [
            (row.id, row.message)
            for row in rows
            if row.message is not None
            and row.message.topic not in resting
            and (row.message.key is None or (row.message.topic, row.message.key) not in left)
        ]
        errors = self._kafka.send([message for _, message in sent])
        answers = judged(rows, dict(zip((id_ for id_, _ in sent), errors, strict=True)), resting)
        # Before the stamp, which takes time: concurrent calls are about to send to these topics.
        self._rest(*answers.silent)
        return answers

    def _require_awake(self) -> None:
        """Raise `NotNow` during the cool-down after a failure of the database."""
        if None in self._resting():
            raise NotNow("the database did not answer a moment ago")

    def _resting(self) -> frozenset[str | None]:
        """Return the topics that are in a cool-down; None among them stands for everything."""
        now = self._clock()
        with self._lock:
            return frozenset(topic for topic, until in self._rests.items() if now < until)

    def _rest(self, *topics: str | None) -> None:
        now = self._clock()
        with self._lock:
            # Cool-downs that are over are dropped: an application may have any number of topics.
            self._rests = {topic: until for topic, until in self._rests.items() if now < until}
            self._rests |= dict.fromkeys(topics, now + self._rest_seconds)


def _stamped(answers: Answers, stamped: int) -> Answers:
    """Return the answers, given how many of the acked rows were stamped: the other acked rows count as unknown."""
    lacking = len(answers.acked) - stamped
    if not lacking:
        return answers
    why = f"{lacking} rows were sent, and the database did not stamp them: is there a trigger or a rule on the table?"
    return replace(answers, unknown=answers.unknown + lacking, reasons=(why, *answers.reasons)[:_NAMED])


def _failed(receipts: int, answers: Answers | None, error: DatabaseLost | DatabaseRefused) -> Cleared:
    """Return the outcome after a failure of the database: acked rows count as unknown, as their stamps may be lost."""
    reason = str(error)
    if answers is None:
        return Cleared(not_sent=receipts, reasons=(reason,))
    unknown = answers.unknown + len(answers.acked)
    return Cleared(not_sent=receipts - unknown, unknown=unknown, reasons=(reason, *answers.reasons)[:_NAMED])
