"""The hand-off of a batch: none is committed without its Start, none is started twice, none is delivered uncommitted.

1. `Begin`; `WriteStarts`; `Flush`; `SendOffsets`, under a name that no other transaction has; `Commit`. Then `Deliver`.
2. Nothing is aborted. After a fault or an answer that is not certain, `Renew`: a new producer with the same
   transactional id ends whatever was open. Then `ReadCommitted`, and `judge` decides by the names in the offsets:
   ours is there: it was committed, deliver; every offset is where it was: it was not, try again; anything else: another
   member is past us, give up. What is given up was never delivered: the group reads it again, or the tracker
   redelivers it.
3. Between two tries, `Rest`. If the group was rebalanced meanwhile, the batch is delivered or given up, never tried
   again: its records are read anew by their owner.
4. A Start that the broker refuses: the batch is tried by halves. The record that is refused alone becomes a dead letter
   in the transaction that passes it.
5. The group refuses the offsets: we are no member any more. Give up; the transaction is ended by `Renew`.

`at_least_once` is kafka-mq-go's way: Starts, then offsets. A crash between them starts messages twice.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from thresher.kafka.group_offsets import GroupOffset
from thresher.queue.hand_off.intake import Batch, Span
from thresher.queue.problem import DeadLetterRefused

# Effects, each with its answer.


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction → None or `Uncertain`."""


@dataclass(frozen=True, slots=True)
class WriteStarts:
    """Queue a Start for each record, or the dead letter → None or `Uncertain`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until the broker has answered for every record → None, `Refused` or `Uncertain`."""


@dataclass(frozen=True, slots=True)
class SendOffsets:
    """Add the batch's offsets to the transaction, each with the name → None, `NoMember` or `Uncertain`."""

    batch: Batch
    name: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the transaction → None or `Uncertain`."""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """At least once: commit the batch's offsets, by themselves → None, `NoMember` or `Uncertain`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Renew:
    """Replace the producer, until that succeeds: whatever was open is ended, and late requests are refused.

    → whether the group was rebalanced since the batch was polled: it is served meanwhile.
    """


@dataclass(frozen=True, slots=True)
class ReadCommitted:
    """Read the group's offsets, until that succeeds → offsets by partition."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait a little, and serve the group meanwhile → whether it was rebalanced since the batch was polled."""

    tries: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the batch's messages to the application, and note that offsets have passed it."""

    batch: Batch


Effect = (
    Begin | WriteStarts | Flush | SendOffsets | Commit | CommitOffsets | Renew | ReadCommitted | Rest | Deliver
)  # fmt: skip

# Answers


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker refuses a record for good: one of the batch's Starts, or its dead letter."""

    why: str


@dataclass(frozen=True, slots=True)
class NoMember:
    """The group has removed us, or has given the partitions to another member."""

    why: str


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Something failed. Whether the transaction is committed, only the group's offsets can tell."""

    why: str


class Outcome(Enum):
    """How a hand-off ended."""

    DELIVERED = "delivered"
    GIVEN_UP = "given up"


class Verdict(Enum):
    """What a group's offsets say of a transaction whose outcome was not certain."""

    OURS = "it was committed"
    BEFORE = "it was not"
    ANOTHERS = "another member may be past us"


Steps = Generator[Effect, Any, Outcome]


def judge(spans: Mapping[int, Span], name: str, found: Mapping[int, GroupOffset]) -> Verdict:
    """Decide what became of a transaction with these offsets. `found` was read after its producer was renewed."""
    stored = {partition: found.get(partition) for partition in spans}
    # One is enough: the transaction has all of its offsets or none, and another member may be past some.
    if any(offset is not None and offset.metadata == name for offset in stored.values()):
        return Verdict.OURS
    if all(offset is not None and offset.offset == spans[partition].begin for partition, offset in stored.items()):
        return Verdict.BEFORE
    return Verdict.ANOTHERS


def exactly_once(batch: Batch, new_name: Callable[[], str]) -> Steps:
    """Hand a batch off in transactions. `new_name` returns a name that no transaction had."""
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
                # The commit was not asked for: nothing of it is committed.
                if (yield Renew()):
                    return Outcome.GIVEN_UP
                parts[:1] = _smaller(part, why)
            case NoMember():
                yield Renew()
                return Outcome.GIVEN_UP
            case Uncertain():
                tries += 1
                yield Renew()
                found = yield ReadCommitted(tuple(part.spans))
                verdict = judge(part.spans, name, found)
                if verdict is Verdict.OURS:
                    yield Deliver(part)
                    del parts[0]
                elif verdict is Verdict.ANOTHERS:
                    return Outcome.GIVEN_UP
                if (yield Rest(tries)):
                    return Outcome.GIVEN_UP if parts else Outcome.DELIVERED
    return Outcome.DELIVERED


def at_least_once(batch: Batch) -> Steps:
    """Hand a batch off in two steps: Starts, then offsets."""
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
                if (yield Rest(tries)):
                    return Outcome.GIVEN_UP
    return Outcome.DELIVERED


def _transaction(batch: Batch, name: str) -> Generator[Effect, Any, Refused | NoMember | Uncertain | None]:
    """Make one transaction, up to the first step that fails."""
    for step in (Begin(), WriteStarts(batch), Flush(), SendOffsets(batch, name), Commit()):
        answer: Refused | NoMember | Uncertain | None = yield step
        if answer is not None:
            return answer
    return None


def _smaller(batch: Batch, why: str) -> tuple[Batch, ...]:
    if len(batch.records) > 1:
        return batch.halves()
    if batch.dead_reason is not None or not batch.records:
        named = ", ".join(str(record.message_id) for record in batch.records)
        raise DeadLetterRefused(
            f"the broker refuses the Start of message {named}, and its dead letter too: {why}; raise max.message.bytes "
            "of the markers and of the dead letters above that of the messages ('thresher queue init' judges them)"
        )
    return (batch.dead(why),)
