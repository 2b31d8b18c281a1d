"""A model of a broker: the topics of queues, transactions, and one consumer group.

Each commit is judged at once: a broken promise of the hand-off raises `AssertionError`.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from thresher.kafka.group.offsets import GroupOffset
from thresher.queue.wire.marker import MessageId

PARTITIONS = 3
TOPIC = "messages"
OURS, ANOTHER_QUEUES, REFUSED, GAP = range(4)
# The probability that a wait goes on.
WAITS = 0.4


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of the message topic. A redelivered message keeps its number."""

    nature: int
    number: int


@dataclass(eq=False)
class Transaction:
    """The uncommitted records and offsets of a transactional id."""

    starts: list[MessageId] = field(default_factory=list)
    dead: list[MessageId] = field(default_factory=list)
    offsets: dict[int, GroupOffset] = field(default_factory=dict)
    # The commit was sent and has not arrived.
    ending: bool = False


class Broker:
    """Topics, transactions, and one consumer group."""

    def __init__(self, *, once: bool) -> None:
        self.once = once
        self.logs: dict[int, list[Sent]] = {partition: [] for partition in range(PARTITIONS)}
        self.first = dict.fromkeys(self.logs, 0)
        self.starts: Counter[MessageId] = Counter()
        self.dead: Counter[MessageId] = Counter()
        self.offsets: dict[int, GroupOffset] = {}
        self.open: dict[int, Transaction] = {}
        self.generation = 0
        self.owners: dict[int, int] = {}

    def at(self, place: MessageId) -> Sent:
        return self.logs[place.partition][place.offset]

    def end(self, producer: int, *, commit: bool) -> None:
        """End a transaction."""
        transaction = self.open.pop(producer)
        if commit:
            self.start(transaction.starts)
            self.bury(transaction.dead)
            self.pass_to(transaction.offsets)

    def start(self, places: Iterable[MessageId]) -> None:
        for place in places:
            assert self.at(place).nature == OURS, f"{place} is not ours, or was refused, and has a Start"
            self.starts[place] += 1
            assert not self.once or self.starts[place] == 1, f"{place} was started twice"
            assert not self.dead[place], f"{place} is a dead letter and was started"

    def bury(self, places: Iterable[MessageId]) -> None:
        for place in places:
            assert self.at(place).nature == REFUSED, f"{place} could be started, and became a dead letter"
            self.dead[place] += 1
            assert not self.once or self.dead[place] == 1, f"{place} became a dead letter twice"

    def pass_to(self, offsets: dict[int, GroupOffset]) -> None:
        for partition, new in offsets.items():
            old = self.offsets[partition].offset
            assert not self.once or new.offset >= old, f"the offset of {partition} went from {old} back to {new.offset}"
            for offset in range(max(old, self.first[partition]), new.offset):
                place = MessageId(partition, offset)
                if self.at(place).nature in {OURS, REFUSED}:
                    found = self.starts[place] + self.dead[place]
                    assert found, f"{place} was passed without a Start, by {new.metadata}"
            self.offsets[partition] = new

    def settled(self, partitions: Iterable[int], luck: random.Random) -> bool:
        """Return whether no open transaction has offsets in these partitions. Some may end by their time-out here."""
        wanted = set(partitions)
        for producer, transaction in list(self.open.items()):
            if wanted & transaction.offsets.keys():
                if luck.random() < WAITS:
                    return False
                self.end(producer, commit=transaction.ending and luck.random() < 0.5)
        return True
