"""Sends stored messages at once, after the application's commit, and stamps them: a sweeper sends what is left.

1. **Lock** the receipts' rows, over a connection of the dispatcher's own, unless the relay is no sweeper: only rows
   that are committed, unstamped and in nobody's hands. Before the commit and after a rollback there are none. A crash
   here frees the rows.
2. **Send** them by one idempotent producer, all acks, in the order in which they were stashed, and wait for answers. A
   crash here may leave rows in Kafka without a stamp: the sweeper sends them again.
3. **Stamp** those that were acked, in one statement, and commit, which frees the rows. A crash before the commit is as
   one in step 2; after it, nothing is left to do.

Nothing is raised because a broker or the database failed: `Cleared` tells how many rows are left to the sweeper. Calls
do not wait for what was away a moment ago: a topic whose brokers did not answer rests, and so does everything after the
database failed.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError

from thresher.core.errors import InvalidInput, shorten
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.outbox.message import Message
from thresher.outbox.receipt import Receipt
from thresher.outbox.shape import Shape
from thresher.outbox.writer import Outbox
from thresher.publisher.dispatch_table import Connect, DispatchTable, LockedRow, NotNow, Version
from thresher.publisher.kafka_backend import KafkaBackend

logger = logging.getLogger(__name__)

# Rows that are locked and sent together.
_ROWS = 500
# How much longer than for its brokers a dispatcher may keep its rows locked, once it has vanished.
_LATE_SECONDS = 20.0
_NAMED = 5
# The broker, or the client itself, did not take the record.
_REFUSED = frozenset({Refusal.ROW, Refusal.SIZE, Refusal.TIME, Refusal.TOPIC, Refusal.TOPIC_DENIED, Refusal.CLIENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What became of receipts. Each is counted once."""

    # In Kafka, and stamped.
    sent: int = 0
    # Not this call's to send: not committed, stamped or removed already, or in the hands of another sender.
    skipped: int = 0
    # Not in Kafka. The sweeper sends them, or sets them aside.
    not_sent: int = 0
    # In Kafka perhaps, and not stamped. The sweeper sends them, perhaps again.
    unknown: int = 0
    # Why rows are left to the sweeper: some of the reasons.
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
    """What the brokers said of rows that were locked: the ids to be stamped, and the rest."""

    acked: Sequence[int]
    not_sent: int
    unknown: int
    reasons: tuple[str, ...]
    # Topics and keys with a row that is left: a later one does not overtake it.
    left: frozenset[tuple[str, Any]]
    # Topics whose brokers did not answer for a row.
    silent: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What became of a part of a call, and which keys are left. After one that failed, nothing more is sent."""

    cleared: Cleared
    left: frozenset[tuple[str, Any]] = frozenset()
    failed: bool = False


def judged(
    rows: Sequence[LockedRow], errors: Mapping[int, KafkaError | None], resting: Collection[str | None] = ()
) -> Answers:
    """Decide which rows are stamped, by the answer for each row that was sent: those of resting topics were not."""
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
        if error is None or refusal_of(error) in _REFUSED:
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
        return "a row can never be sent as it is stored: the sweeper sets it aside"
    if error is None and message.topic in resting:
        return f"{message.topic}: its brokers did not answer a moment ago"
    if error is None:
        return f"{message.topic}: a row of key {shorten(message.key)} is left before it"
    return f"{message.topic}: {error.str()}"


class Dispatcher:
    """Sends the messages of receipts. Safe from any thread; a context manager, which closes.

    Its outbox is in our own shape, and its relay runs with `dispatch: immediate`.
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
        """`connect` opens a connection of the dispatcher's own; `kafka` are the properties of its producer.

        A call begins nothing after `timeout_seconds`, and waits as long at most for the answers to what it began. A
        topic whose brokers did not answer is left to the sweeper for `rest_seconds`, and so is everything after the
        database failed: what is away does not slow the application down. Calls that run at once share so many
        `connections`. Raises `InvalidInput` for properties that no producer can be made with.
        """
        outbox = outbox or Outbox()
        if not outbox.keeps_rows:
            raise InvalidInput(f"{outbox.name} keeps no rows that a dispatcher could lock and stamp: a tail sends them")
        if outbox.shape is not Shape.THRESHER:
            raise InvalidInput(f"a dispatcher stamps rows, and shape {outbox.shape.value} has no column for a stamp")
        if timeout_seconds < 0.1 or rest_seconds < 0 or connections < 1:
            raise InvalidInput("timeout_seconds is at least 0.1, rest_seconds at least 0, connections at least 1")
        self._outbox = outbox.name
        self._table = DispatchTable(
            connect, outbox.name, connections=connections, idle_seconds=timeout_seconds + _LATE_SECONDS
        )
        bounds = {
            "message.timeout.ms": int(timeout_seconds * 1000),
            # How long a topic that nobody knows is waited for.
            "topic.metadata.propagation.max.ms": min(1000, int(timeout_seconds * 1000)),
        }
        given = {name: value for name, value in kafka.items() if name != "delivery.timeout.ms"}
        self._kafka = KafkaBackend({**given, **bounds}, waits=True)
        self._kafka.check()
        self._timeout_seconds, self._rest_seconds, self._clock = timeout_seconds, rest_seconds, clock
        # Until when topics are left to the sweeper, and everything is: under None, after the database failed.
        self._rests: dict[str | None, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "Dispatcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self, receipts: Iterable[Receipt | None]) -> Cleared:
        """Send what the receipts stand for, and stamp it. Call it after the commit; earlier, it finds nothing.

        In the order in which the messages were stashed, for each key. None, as a pipeline gives it, is left to the
        sweeper. Raises `InvalidInput` for a receipt of another outbox, `DispatchRefused` beside a relay that is no
        sweeper.
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
        """Let go of producer and connections. Harmless when repeated."""
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
        """Clear some receipts, but for keys of which a row is left."""
        answers: Answers | None = None
        try:
            # Before and after it has waited for its turn.
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
        # At once: the stamp takes its time, and other calls are about to send.
        self._rest(*answers.silent)
        return answers

    def _require_awake(self) -> None:
        """Raise `NotNow` while everything is left to the sweeper."""
        if None in self._resting():
            raise NotNow("the database did not answer a moment ago")

    def _resting(self) -> frozenset[str | None]:
        """Return the topics that are left to the sweeper for now; None among them is everything."""
        now = self._clock()
        with self._lock:
            return frozenset(topic for topic, until in self._rests.items() if now < until)

    def _rest(self, *topics: str | None) -> None:
        now = self._clock()
        with self._lock:
            # Those whose rest is over are forgotten: an application may have any number of topics.
            self._rests = {topic: until for topic, until in self._rests.items() if now < until}
            self._rests |= dict.fromkeys(topics, now + self._rest_seconds)


def _stamped(answers: Answers, stamped: int) -> Answers:
    """Return the answers when so many of the acked rows are stamped: of others nobody knows whether they stay so."""
    lacking = len(answers.acked) - stamped
    if not lacking:
        return answers
    why = f"{lacking} rows were sent, and the database did not stamp them: is there a trigger or a rule on the table?"
    return replace(answers, unknown=answers.unknown + lacking, reasons=(why, *answers.reasons)[:_NAMED])


def _failed(receipts: int, answers: Answers | None, error: DatabaseLost | DatabaseRefused) -> Cleared:
    """Tell of receipts whose database failed: what was acked has no stamp, as far as is known."""
    reason = str(error)
    if answers is None:
        return Cleared(not_sent=receipts, reasons=(reason,))
    unknown = answers.unknown + len(answers.acked)
    return Cleared(not_sent=receipts - unknown, unknown=unknown, reasons=(reason, *answers.reasons)[:_NAMED])
