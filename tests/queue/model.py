"""A model of Kafka and of the code around the hand-off. Any part may stop at any step.

1. A partition holds records of several queues, and gaps. Retention may remove its first records. The broker refuses the
   Starts of some records of our queue.
2. A transaction is committed as a whole or not at all. The answer to a commit may be lost: the commit was done, or not,
   or arrives later. It never arrives after its producer was replaced or the time-out has ended the transaction.
3. The group's generation rises with each rebalance, at the broker at once. A member learns of it when it polls: between
   batches, and while it waits. Until then it goes on, and the broker refuses its offsets.
4. A member that is given partitions begins at the group's offsets, once no transaction with offsets in them is open.
5. The tracker redelivers a started message that no living member holds.

Each event is judged at once: a broken promise of the hand-off raises `AssertionError`.
"""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.queue.broker_model import (
    ANOTHER_QUEUES,
    GAP,
    OURS,
    PARTITIONS,
    REFUSED,
    TOPIC,
    WAITS,
    Broker,
    Sent,
    Transaction,
)
from thresher.kafka.group.offsets import GroupOffset
from thresher.queue.hand_off.polled_records import Batch, PolledRecords
from thresher.queue.hand_off.protocol import (
    BackOff,
    Begin,
    Commit,
    CommitOffsets,
    Deliver,
    Effect,
    Flush,
    NoMember,
    Outcome,
    ReadCommitted,
    Refused,
    ReplaceProducer,
    SendOffsets,
    Steps,
    Uncertain,
    WriteStarts,
    at_least_once,
    exactly_once,
)
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import Record

# The probabilities that a step fails, that a commit fails, and that a poll brings a rebalance.
FAULT, COMMIT_FAULT, REBALANCE = 0.06, 0.25, 0.05
# The step is not done yet.
_NOT_YET = object()


@dataclass(eq=False)
class Member:
    """One process: a member of the group, its producer, and its current hand-off."""

    number: int
    polled: PolledRecords
    # The generation of its group metadata, from the last assignment; None while it has no partitions.
    generation: int | None = None
    # Raised by each change of its partitions.
    epoch: int = 0
    steps: Steps | None = None
    due: Effect | None = None
    # The epoch when the batch was cut.
    began: int = 0
    transaction: Transaction | None = None
    written: Batch | None = None
    name: str = ""
    # The batch's name was found in the group's offsets: the batch must be delivered.
    owed: bool = False
    held: set[MessageId] = field(default_factory=set)


class World:
    """The whole model and all its events."""

    def __init__(self, *, once: bool, most_skipped: int) -> None:
        self.once, self.most_skipped = once, most_skipped
        self.broker = Broker(once=once)
        self.members: list[Member] = []
        self.delivered: Counter[MessageId] = Counter()
        self.ended: set[MessageId] = set()
        self._numbers, self._names, self._sent = itertools.count(1), itertools.count(1), itertools.count(1)

    # Events outside of the members

    def send(self, partition: int, nature: int) -> None:
        self.broker.logs[partition].append(Sent(nature, next(self._sent)))

    def launch(self) -> None:
        self.members.append(Member(next(self._numbers), self._polled()))

    def rebalance(self, luck: random.Random) -> None:
        """Assign every partition to a random member."""
        self.broker.generation += 1
        if self.members:
            self.broker.owners = {each: luck.choice(self.members).number for each in range(PARTITIONS)}

    def kill(self, member: Member) -> None:
        """End a process. A commit that it sent may still arrive."""
        if isinstance(member.due, Commit) and member.transaction is self.broker.open.get(member.number):
            assert member.transaction is not None
            member.transaction.ending = True
        self.members.remove(member)

    def end_transaction(self, choice: int, *, arrives: bool) -> None:
        """Let a commit that was sent arrive, or let the time-out end its transaction."""
        producer, transaction = list(self.broker.open.items())[choice % len(self.broker.open)]
        self.broker.end(producer, commit=transaction.ending and arrives)

    def remove(self, partition: int, records: int) -> None:
        """Let retention remove a partition's first records, whether they were read or not."""
        broker = self.broker
        broker.first[partition] = min(broker.first[partition] + records, len(broker.logs[partition]))

    def ack(self, member: Member) -> None:
        self.ended |= member.held
        member.held.clear()

    def redeliver(self, partition: int) -> bool:
        """Let the tracker redeliver a message that no member keeps alive; return whether there was one."""
        kept = {place for member in self.members for place in member.held}
        for place in self.broker.starts:
            if place not in self.ended and place not in kept:
                self.ended.add(place)
                self.broker.logs[partition].append(self.broker.at(place))
                return True
        return False

    # A member's step

    def step(self, member: Member, luck: random.Random) -> None:
        """Do one effect, or look for a batch. The group may be rebalanced in the middle of a transaction."""
        if luck.random() < REBALANCE / 2:
            self.rebalance(luck)
        if member.steps is None:
            self._serve(member, luck)
            self._fetch(member, luck)
            batch = member.polled.cut(luck.choice([1, 2, 3, 8]), pass_skipped=luck.random() < 0.3)
            if batch is None:
                return
            member.steps = exactly_once(batch, self._name) if self.once else at_least_once(batch)
            member.began, member.owed = member.epoch, False
            member.due = next(member.steps)
            return
        assert member.due is not None
        if (answer := self._do(member, member.due, luck)) is _NOT_YET:
            return
        try:
            member.due = member.steps.send(answer)
        except StopIteration as end:
            assert not member.owed, "a batch that was found to be committed was not delivered"
            member.steps = member.due = None
            if end.value is Outcome.GIVEN_UP and member.epoch == member.began:
                self._join_again(member, luck)

    def _join_again(self, member: Member, luck: random.Random) -> None:
        """Begin a new membership, as the real code does."""
        member.polled, member.generation = self._polled(), None
        member.epoch += 1
        self.broker.open.pop(member.number, None)
        self.rebalance(luck)

    def _do(self, member: Member, effect: Effect, luck: random.Random) -> Any:
        match effect:
            case ReplaceProducer():
                return self._renew(member, luck)
            case ReadCommitted(partitions):
                return self._read_committed(member, partitions, luck)
            case BackOff():
                self._serve(member, luck)
                return _NOT_YET if luck.random() < WAITS else member.epoch != member.began
            case Deliver(batch):
                return self._deliver(member, batch)
        return self._write(member, effect, luck)

    def _write(self, member: Member, effect: Effect, luck: random.Random) -> NoMember | Refused | Uncertain | None:
        match effect:
            case Begin():
                return self._begin(member, luck)
            case WriteStarts(batch):
                member.written = batch
                return self._uncertain(luck)
            case Flush():
                return self._flush(member, luck)
            case SendOffsets(batch, name):
                return self._send_offsets(member, batch, name, luck)
            case Commit():
                return self._commit(member, luck)
            case CommitOffsets(batch):
                return self._commit_offsets(member, batch, luck)
        raise AssertionError(f"{effect} writes nothing")

    def _begin(self, member: Member, luck: random.Random) -> Uncertain | None:
        assert not member.owed, "a batch that was found to be committed is tried again"
        assert member.number not in self.broker.open, "a transaction was begun before the last was ended"
        member.transaction, member.name = None, "no name yet"
        if (answer := self._uncertain(luck)) is None:
            member.transaction = self.broker.open[member.number] = Transaction()
        return answer

    def _flush(self, member: Member, luck: random.Random) -> Refused | Uncertain | None:
        """Write the queued records. Without a transaction, each record is visible at once."""
        batch = member.written
        assert batch is not None
        places = [record.message_id for record in batch.records]
        refused = batch.dead_reason is None and any(self.broker.at(place).nature == REFUSED for place in places)
        accepted = [place for place in places if batch.dead_reason or self.broker.at(place).nature == OURS]
        failed = self._uncertain(luck)
        if failed is not None:
            accepted = [place for place in accepted if luck.random() < 0.5]
        if self.once:
            if (transaction := self._live(member)) is None:
                return Uncertain("the producer was fenced")
            (transaction.dead if batch.dead_reason else transaction.starts).extend(accepted)
        else:
            (self.broker.bury if batch.dead_reason else self.broker.start)(accepted)
        return Refused("too large") if refused else failed

    def _send_offsets(
        self, member: Member, batch: Batch, name: str, luck: random.Random
    ) -> NoMember | Uncertain | None:
        if (transaction := self._live(member)) is None:
            return Uncertain("the producer was fenced")
        if member.generation is None or member.generation != self.broker.generation:
            return NoMember("another generation")
        member.name = name
        if (failed := self._uncertain(luck)) is None or luck.random() < 0.5:
            transaction.offsets = _offsets(batch, name)
        return failed

    def _commit(self, member: Member, luck: random.Random) -> Uncertain | None:
        if (transaction := self._live(member)) is None:
            return Uncertain("the producer was fenced")
        if luck.random() >= COMMIT_FAULT:
            self.broker.end(member.number, commit=True)
            return None
        fate = luck.randrange(3)
        if fate == 0:
            transaction.ending = True
        else:
            self.broker.end(member.number, commit=fate == 1)
        return Uncertain("no answer")

    def _commit_offsets(self, member: Member, batch: Batch, luck: random.Random) -> NoMember | Uncertain | None:
        if member.generation is None or member.generation != self.broker.generation:
            return NoMember("another generation")
        if (failed := self._uncertain(luck)) is None or luck.random() < 0.5:
            self.broker.pass_to(_offsets(batch, ""))
        return failed

    def _renew(self, member: Member, luck: random.Random) -> Any:
        if luck.random() < WAITS:
            self._serve(member, luck)
            return _NOT_YET
        if (transaction := self.broker.open.get(member.number)) is not None:
            self.broker.end(member.number, commit=transaction.ending and luck.random() < 0.5)
        return member.epoch != member.began

    def _read_committed(self, member: Member, partitions: tuple[int, ...], luck: random.Random) -> Any:
        if luck.random() < WAITS / 2 or not self.broker.settled(partitions, luck):
            self._serve(member, luck)
            return _NOT_YET
        found = {each: self.broker.offsets[each] for each in partitions}
        member.owed = any(offset.metadata == member.name for offset in found.values())
        return found

    def _deliver(self, member: Member, batch: Batch) -> None:
        member.owed = False
        member.polled.passed(batch)
        for record in batch.records:
            place = record.message_id
            if batch.dead_reason is not None:
                assert self.broker.dead[place], f"{place} counts as a dead letter, and is none"
                continue
            assert self.broker.starts[place], f"{place} was delivered, and its Start is not committed"
            self.delivered[place] += 1
            assert not self.once or self.delivered[place] == 1, f"{place} was delivered twice"
            if place not in self.ended:
                member.held.add(place)

    def _serve(self, member: Member, luck: random.Random) -> None:
        """Do a poll's work for the group: revoke and assign partitions. The group may be rebalanced meanwhile."""
        broker = self.broker
        if luck.random() < REBALANCE:
            self.rebalance(luck)
        if member.generation == broker.generation:
            return
        if member.generation is not None:
            member.epoch += 1
            member.generation = None
            member.polled.forget()
            if luck.random() < WAITS:
                return
        given = [each for each, owner in sorted(broker.owners.items()) if owner == member.number]
        if not broker.settled(given, luck):
            return
        member.epoch += 1
        member.generation = broker.generation
        member.polled.forget()
        for each in given:
            first = GroupOffset(topic=TOPIC, partition=each, offset=broker.first[each], metadata="first")
            if broker.offsets.setdefault(each, first).offset < first.offset:
                broker.offsets[each] = first
            member.polled.give(each, broker.offsets[each].offset)

    def _fetch(self, member: Member, luck: random.Random) -> None:
        polled = member.polled
        for partition in sorted(polled.partitions):
            log, first = self.broker.logs[partition], self.broker.first[partition]
            if polled.position(partition) < first:
                polled.move(partition, first)
            seen = [offset for offset in range(polled.position(partition), len(log)) if log[offset].nature != GAP]
            for offset in seen[: luck.randrange(5)]:
                if log[offset].nature == ANOTHER_QUEUES:
                    polled.skip(partition, offset)
                else:
                    polled.add(_record(MessageId(partition, offset)))

    def _live(self, member: Member) -> Transaction | None:
        """Return the member's transaction, unless the time-out has ended it."""
        found = self.broker.open.get(member.number)
        return found if found is not None and found is member.transaction else None

    def _uncertain(self, luck: random.Random) -> Uncertain | None:
        return Uncertain("no answer") if luck.random() < FAULT else None

    def _name(self) -> str:
        return f"name-{next(self._names)}"

    def _polled(self) -> PolledRecords:
        return PolledRecords(most_skipped=self.most_skipped, most_bytes=3)

    # The end

    def drain(self, luck: random.Random) -> None:
        """End the faults: a new member takes over, and the tracker redelivers until no message is left."""
        self.members.clear()
        for producer in list(self.broker.open):
            self.broker.end(producer, commit=False)
        self.launch()
        self.rebalance(luck)
        for _ in range(3_000):
            for _ in range(10):
                self.step(self.members[0], luck)
                self.ack(self.members[0])
            if self._all_read() and not self.redeliver(luck.randrange(PARTITIONS)):
                return
        raise AssertionError("records stay unread")

    def _all_read(self) -> bool:
        (member,) = self.members
        return (
            member.steps is None
            and len(member.polled) == 0
            and member.polled.partitions == self.broker.logs.keys()
            and all(member.polled.position(each) >= _last(log) for each, log in self.broker.logs.items())
        )

    def judge_at_rest(self) -> None:
        """Check that every record is started or dead, and that every message was processed or is dead."""
        done = set()
        numbers = set()
        for partition, log in self.broker.logs.items():
            for offset, sent in enumerate(log):
                place = MessageId(partition, offset)
                found = self.broker.starts[place] + self.broker.dead[place]
                if sent.nature in {GAP, ANOTHER_QUEUES}:
                    assert not found, f"{place} is not ours"
                elif found or offset >= self.broker.first[partition]:
                    assert found == 1 if self.once else found >= 1, f"{place} has {found} Starts and dead letters"
                    numbers.add(sent.number)
                    if place in self.ended or self.broker.dead[place]:
                        done.add(sent.number)
        assert numbers == done, "messages were lost"


def _last(log: list[Sent]) -> int:
    """The offset after the last record that a consumer gets."""
    return next((offset + 1 for offset in range(len(log) - 1, -1, -1) if log[offset].nature != GAP), 0)


def _offsets(batch: Batch, name: str) -> dict[int, GroupOffset]:
    return {
        partition: GroupOffset(topic=TOPIC, partition=partition, offset=span.end, metadata=name)
        for partition, span in batch.spans.items()
    }


def _record(place: MessageId) -> Record:
    return Record(message_id=place, payload=b"p", headers=(), delivery_count=1, origin_id=place, enqueued_at_ms=1)
