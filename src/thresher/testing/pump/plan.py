"""The plan of a load, and the messages made from it. The same plan and seed give the same load."""

import itertools
import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.outbox import Limits, Message, Shape
from thresher.outbox.admission import Admission
from thresher.outbox.unpolled import Via
from thresher.testing.history import IDENTITY_HEADER, Content, identity
from thresher.testing.record import content_of

# With a larger exponent nearly all records have one key, and the weights are too small for a float.
_LARGEST_SKEW = 10
# A repeated name, a header without a value, and a header with an empty value.
_HEADERS = (("kind", b"one"), ("kind", b"two"), ("nothing", None), ("empty", b""))
# Milliseconds: timestamps of rows are within the minute before the run, since a broker refuses distant ones.
_TIMES = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How a record differs from a plain one: no key, more headers, a partition, or a time before the run's start."""

    keyless: bool = False
    headers: bool = False
    partition: int | None = None
    milliseconds: int | None = None


PLAIN = Variation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A load. It is checked as a whole: one message has every problem.

    `records` counts all generated rows, including those of rolled-back transactions. `skew` is Zipf's exponent: 0 for
    equally frequent keys, 1 for a few hot ones. With `own_keys` each key belongs to one writer; otherwise all writers
    share all keys. With several `topics` (`<topic>-0`, `<topic>-1`, …), each key has one of them.
    `varied` is the share of rows without a key, and also that of rows with more headers, with a partition (the first),
    and with a timestamp; a row may have several of these. Timestamps are within the minute before `started`; without
    `started`, no row has one. With `via="log"` messages go only into Postgres' WAL, which `slot` retains.
    """

    dsn: str = field(repr=False)
    records: int
    keys: int
    table: str = "outbox"
    schema: str | None = None
    shape: Shape = Shape.THRESHER
    via: Via = "table"
    slot: str | None = None
    topic: str = "pump"
    topics: int = 1
    blank: bool = False
    value_bytes: int = 100
    writers: int = 1
    transaction_rows: int = 20
    rollback_share: float = 0.0
    interval_milliseconds: float = 0.0
    rate: float | None = None
    skew: float = 0.0
    own_keys: bool = False
    varied: float = 0.0
    started: datetime | None = None
    seed: int = 0
    run: str
    history: Path | None = None
    patience_seconds: float = 30.0

    def __post_init__(self) -> None:
        problems = [problem for wrong, problem in self._rules() if wrong]
        if not problems:
            problems = [str(error) for error in self._refusals()]
        if problems:
            raise InvalidInput("; ".join(problems))

    def _rules(self) -> Iterator[tuple[bool, str]]:
        yield self.records < 1, f"records = {self.records}: at least 1 is needed"
        yield self.topics < 1, f"topics = {self.topics}: at least 1 is needed"
        yield self.keys < 1, f"keys = {self.keys}: at least 1 is needed"
        yield self.writers < 1, f"writers = {self.writers}: at least 1 is needed"
        yield (
            self.own_keys and self.keys < self.writers,
            f"keys = {self.keys}: {self.writers} writers cannot own one each",
        )
        yield self.transaction_rows < 1, f"transaction rows = {self.transaction_rows}: at least 1 is needed"
        yield self.value_bytes < 0, f"value size = {self.value_bytes}: it cannot be negative"
        yield not 0 <= self.rollback_share <= 1, f"rollback share = {self.rollback_share}: 0 to 1 is possible"
        yield not 0 <= self.interval_milliseconds < math.inf, f"interval = {self.interval_milliseconds}: 0 or more"
        yield self.rate is not None and not 0 < self.rate < math.inf, f"rate = {self.rate}: it must be above 0"
        yield not 0 <= self.skew <= _LARGEST_SKEW, f"skew = {self.skew}: 0 to {_LARGEST_SKEW} is possible"
        yield not 0 <= self.varied <= 1, f"varied share = {self.varied}: 0 to 1 is possible"
        yield not 0 <= self.patience_seconds < math.inf, f"patience = {self.patience_seconds}: 0 or more"

    def _refusals(self) -> Iterator[InvalidInput]:
        """Yield the errors with which the outbox would refuse this load, before any writer starts."""
        try:
            TableName(table=self.table, schema=self.schema)
        except InvalidInput as error:
            yield error
        try:
            largest = identity(self.run, self.writers, self.records).encode()
            variation = Variation(keyless=True, headers=True, partition=0, milliseconds=0) if self.varied else PLAIN
            Admission(self.shape, Limits()).row(self.message(largest, f"key-{self.keys:x}", variation))
        except InvalidInput as error:
            yield error

    def message(self, mark: bytes, key: str, variation: Variation = PLAIN) -> Message:
        """Return a record with this identity and key."""
        # The value begins with the identity, as far as it fits, so that swapped values are noticed too.
        value = None if self.blank else mark[: self.value_bytes].ljust(self.value_bytes, b".")
        return Message(
            topic=self._topic_of(key),
            key=None if variation.keyless else key.encode(),
            value=value,
            headers=((IDENTITY_HEADER, mark), *(_HEADERS if variation.headers else ())),
            partition=variation.partition,
            timestamp=self._timestamp(variation.milliseconds),
        )

    @property
    def topic_names(self) -> list[str]:
        """The topics of all records."""
        return [self.topic] if self.topics == 1 else [f"{self.topic}-{number}" for number in range(self.topics)]

    def _topic_of(self, key: str) -> str:
        return self.topic if self.topics == 1 else self.topic_names[zlib.crc32(key.encode()) % self.topics]

    def _timestamp(self, milliseconds: int | None) -> datetime | None:
        if self.started is None or milliseconds is None:
            return None
        return self.started - timedelta(milliseconds=milliseconds)

    def records_of(self, writer: int) -> int:
        """Return how many of the rows this writer writes."""
        return self.records // self.writers + (writer < self.records % self.writers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A transaction to write: its messages, the (number, key) of each for the history, and whether to roll it back."""

    messages: list[Message]
    rows: list[tuple[int, str | None]]
    roll_back: bool

    def contents(self) -> list[Content]:
        """Return the contents of the messages, for the history."""
        return [content_of(message) for message in self.messages]


def loads(plan: Plan, writer: int) -> Iterator[Load]:
    """Yield the transactions of one writer."""
    draw = random.Random(f"{plan.seed}/{writer}")  # noqa: S311 - a load, not a secret
    keys = [f"key-{number:x}" for number in range(plan.keys) if not plan.own_keys or number % plan.writers == writer]
    weights = list(itertools.accumulate(1 / rank**plan.skew for rank in range(1, len(keys) + 1)))
    number = 0
    left = plan.records_of(writer)
    while left:
        size = min(plan.transaction_rows, left)
        left -= size
        messages = []
        rows: list[tuple[int, str | None]] = []
        for key in draw.choices(keys, cum_weights=weights, k=size):
            variation = _drawn(draw, plan.varied, number) if plan.varied else PLAIN
            messages.append(plan.message(identity(plan.run, writer, number).encode(), key, variation))
            rows.append((number, None if variation.keyless else key))
            number += 1
        yield Load(messages=messages, rows=rows, roll_back=draw.random() < plan.rollback_share)


def _drawn(draw: random.Random, share: float, number: int) -> Variation:
    keyless, headers, placed, timed = (draw.random() < share for _ in range(4))
    return Variation(
        keyless=keyless,
        headers=headers,
        partition=0 if placed else None,
        milliseconds=number % _TIMES if timed else None,
    )
