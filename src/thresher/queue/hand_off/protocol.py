"""The hand-off of a batch as a sequence of effects.

No offset is committed without the record's Start, no message is started twice, and no uncommitted message is delivered.

1. `Begin`; `WriteStarts`; `Flush`; `SendOffsets`, with a name unique to this transaction as metadata; `Commit`. Then
   `Deliver`.
2. The producer never aborts a transaction itself. After an error or an uncertain answer comes `ReplaceProducer`: a new
   producer with the same transactional id ends any open transaction. Then `ReadCommitted`, and `judge` compares the
   group's offsets. Our name is there: the transaction was committed, so deliver. Every offset is unchanged: it was not
   committed, so retry. Anything else: another member has moved the offsets, so give up. A batch that is given up was
   never delivered: the group reads it again, or the tracker redelivers it.
3. Between two tries comes `BackOff`. If the group was rebalanced meanwhile, the batch is delivered or given up, but
   never retried: the partitions' owner reads its records again.
4. If the broker refuses a Start, the batch is split in halves and retried. A record that is refused alone becomes a
   dead letter, in the transaction that moves the offset past it. A letter that is refused is written in smaller and
   smaller parts, at last without the message's content: so no message ends a consumer.
5. If the group refuses the offsets, we are no longer a member. Give up; `ReplaceProducer` ends the transaction.

`at_least_once` is kafka-mq-go's way: Starts, then offsets. A crash between them starts messages twice.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from thresher.kafka.group.offsets import GroupOffset
from thresher.queue.hand_off.polled_records import Batch, Span
from thresher.queue.problem import DeadLetterRefused
from thresher.queue.wire.dead_letter import next_part_bytes

# The effects; `→` names the answer to each.


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction → None or `Uncertain`."""


@dataclass(frozen=True, slots=True)
class WriteStarts:
    """Queue a Start for each record, or the dead letter → None or `Uncertain`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until the broker has answered every record → None, `Refused` or `Uncertain`."""


@dataclass(frozen=True, slots=True)
class SendOffsets:
    """Add the batch's offsets to the transaction, with the name as metadata → None, `NoMember` or `Uncertain`."""

    batch: Batch
    name: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the transaction → None or `Uncertain`."""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """At least once: commit the batch's offsets without a transaction → None, `NoMember` or `Uncertain`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class ReplaceProducer:
    """Replace the producer, retrying until that succeeds: any open transaction is ended, and late requests are refused.

    The member keeps polling meanwhile. → whether the group was rebalanced since the batch was polled.
    """


@dataclass(frozen=True, slots=True)
class ReadCommitted:
    """Read the group's offsets, retrying until that succeeds → offsets by partition."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BackOff:
    """Wait, and keep polling meanwhile → whether the group was rebalanced since the batch was polled."""

    tries: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the batch's messages to the application, and register that offsets have moved past it."""

    batch: Batch


Effect = (
    Begin | WriteStarts | Flush | SendOffsets | Commit | CommitOffsets | ReplaceProducer | ReadCommitted | BackOff
    | Deliver
)  # fmt: skip

# Answers


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker permanently refuses a record: one of the batch's Starts, or its dead letter."""

    why: str


@dataclass(frozen=True, slots=True)
class NoMember:
    """The group has removed us, or has assigned the partitions to another member."""

    why: str


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A step failed. Only the group's offsets can tell whether the transaction was committed."""

    why: str


class Outcome(Enum):
    """The result of a hand-off."""

    DELIVERED = "delivered"
    GIVEN_UP = "given up"


class Verdict(Enum):
    """The answer of the group's offsets about a transaction whose outcome was uncertain."""

    COMMITTED = "it was committed"
    NOT_COMMITTED = "it was not"
    TAKEN_BY_ANOTHER = "another member may be past us"


Steps = Generator[Effect, Any, Outcome]


def judge(spans: Mapping[int, Span], name: str, found: Mapping[int, GroupOffset]) -> Verdict:
    """Decide what became of a transaction with these spans and this name.

    `found` are the group's offsets, read after the producer was replaced, so that no late commit can follow.
    """
    stored = {partition: found.get(partition) for partition in spans}
    # One partition is enough: a transaction commits all of its offsets or none, and another member may have moved some
    # since.
    if any(offset is not None and offset.metadata == name for offset in stored.values()):
        return Verdict.COMMITTED
    if all(offset is not None and offset.offset == spans[partition].begin for partition, offset in stored.items()):
        return Verdict.NOT_COMMITTED
    return Verdict.TAKEN_BY_ANOTHER


def exactly_once(batch: Batch, new_name: Callable[[], str]) -> Steps:
    """Hand off a batch in transactions. `new_name` returns a name that no earlier transaction had."""
    parts = [batch]
    tries = 0
    while parts:
        part, name = parts[0], new_name()
        match (yield from _transaction(part, name)):
            case None:
                yield Deliver(part)
                del parts[0]
                tries = 0
            case Refused(why):
                # No commit was requested, so nothing is committed.
                if (yield ReplaceProducer()):
                    return Outcome.GIVEN_UP
                parts[:1] = _smaller(part, why)
            case NoMember():
                yield ReplaceProducer()
                return Outcome.GIVEN_UP
            case Uncertain():
                tries += 1
                yield ReplaceProducer()
                found = yield ReadCommitted(tuple(part.spans))
                verdict = judge(part.spans, name, found)
                if verdict is Verdict.COMMITTED:
                    yield Deliver(part)
                    del parts[0]
                elif verdict is Verdict.TAKEN_BY_ANOTHER:
                    return Outcome.GIVEN_UP
                if (yield BackOff(tries)):
                    return Outcome.GIVEN_UP if parts else Outcome.DELIVERED
    return Outcome.DELIVERED


def at_least_once(batch: Batch) -> Steps:
    """Hand off a batch in two steps: Starts, then offsets."""
    parts = [batch]
    tries = 0
    while parts:
        part = parts[0]
        answer = (yield WriteStarts(part)) or (yield Flush()) or (yield CommitOffsets(part))
        match answer:
            case None:
                yield Deliver(part)
                del parts[0]
                tries = 0
            case Refused(why):
                parts[:1] = _smaller(part, why)
            case NoMember():
                return Outcome.GIVEN_UP
            case Uncertain():
                tries += 1
                if (yield BackOff(tries)):
                    return Outcome.GIVEN_UP
    return Outcome.DELIVERED


def _transaction(batch: Batch, name: str) -> Generator[Effect, Any, Refused | NoMember | Uncertain | None]:
    """Yield the steps of one transaction, and return the answer of the first step that failed, or None."""
    for step in (Begin(), WriteStarts(batch), Flush(), SendOffsets(batch, name), Commit()):
        answer: Refused | NoMember | Uncertain | None = yield step
        if answer is not None:
            return answer
    return None


def _smaller(batch: Batch, why: str) -> tuple[Batch, ...]:
    if len(batch.records) > 1:
        return batch.halves()
    if batch.records and batch.dead_reason is None:
        return (batch.dead(why),)
    part_bytes = next_part_bytes(batch.part_bytes)
    if part_bytes is None or not batch.records:
        named = ", ".join(str(record.message_id) for record in batch.records)
        raise DeadLetterRefused(
            f"the broker refuses the dead letter of message {named}, even without its content: {why}; correct the "
            "dead-letter topic ('thresher queue init' checks it)"
        )
    return (batch.dead(batch.dead_reason or why, part_bytes),)
