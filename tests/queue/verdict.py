"""The verdict on a queue: the broker's records compared with the answers that producers and consumers got. Pure.

1. Lost: a confirmed message that is not in the log; a message that the group's offset has passed without a Start or a
   dead letter; a confirmed ack without an End.
2. Doubled: a message with several Starts or dead letters; a message that was delivered twice; a message that was sent
   once and is in the log twice.
3. Phantom: a Start, a dead letter or a delivery without a message in the log; a refused message that is in the log.
4. Premature: a delivery whose Start is not committed; a Start of a message that the group's offset has not passed.
5. Misplaced: a marker that is not in the partition of its Start, or before it, or behind the one that settled the
   message.
6. Waiting: a message without a Start that no offset has passed.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from thresher.queue.wire.marker import Marker, MarkerType, MessageId

FAULTS = ("lost", "doubled", "phantom", "premature", "misplaced", "waiting")
_EXAMPLES = 5


def payload_of(identity: str, size: int = 0) -> bytes:
    """Return the payload of a message with this identity, filled up with bytes that cannot be compressed."""
    return identity.encode() + (b"." + os.urandom(size) if size else b"")


def identity_of(payload: bytes) -> str:
    """Return the identity of a message."""
    return payload.partition(b".")[0].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Placed:
    """A marker and its offset."""

    partition: int
    offset: int
    marker: Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The broker's records of one queue. A message is known by the identity in its payload."""

    messages: Mapping[MessageId, str]
    markers: Sequence[Placed]
    offsets: Mapping[int, int]
    dead: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The clients' knowledge of one queue: sends by identity, deliveries, and confirmed settlements."""

    confirmed: Mapping[str, MessageId]
    unknown: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    received: Sequence[tuple[MessageId, str]] = ()
    acked: frozenset[MessageId] = frozenset()
    given_back: frozenset[MessageId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueVerdict:
    """The number of each kind of fault, and lines about some of them."""

    counts: Mapping[str, int]
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[tuple[str, str]], kinds: Sequence[str] = FAULTS) -> "QueueVerdict":
        """Return the verdict with these faults, of any number of queues."""
        lines: dict[str, list[str]] = {fault: [] for fault in kinds}
        for fault, line in found:
            lines[fault].append(line)
        return cls(
            counts={fault: len(each) for fault, each in lines.items()},
            examples={fault: tuple(each[:_EXAMPLES]) for fault, each in lines.items() if each},
        )

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not any(self.counts.values())

    def line(self) -> str:
        """Return the verdict in a line."""
        return ", ".join(f"{fault} {count}" for fault, count in self.counts.items())


def judge(held: Held, told: Told, *, redelivery_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the kind of each fault, and a line about it."""
    yield from _sends(held, told)
    yield from judge_markers(held, redelivery_ms=redelivery_ms)
    yield from _deliveries(held, told)
    yield from _settlements(held, told, redelivery_ms)


def judge_markers(held: Held, *, redelivery_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the faults that the broker's records show by themselves, without the clients' knowledge."""
    starts = [each for each in held.markers if each.marker.type is MarkerType.START]
    yield from _passed(held, Counter(each.marker.message_id for each in starts))
    for start in starts:
        if start.marker.message_id not in held.messages:
            yield "phantom", f"{start.marker.message_id} has a Start, and was never sent to this queue"
    yield from _places(held, {each.marker.message_id: each for each in starts}, redelivery_ms)


def _sends(held: Held, told: Told) -> Iterator[tuple[str, str]]:
    for identity, place in told.confirmed.items():
        if held.messages.get(place) != identity:
            yield "lost", f"{identity} was confirmed at {place}, which holds {held.messages.get(place)}"
    for identity, found in _by_identity(held).items():
        if len(found) > 1:
            yield "doubled", f"{identity} was sent once, and is in the log at {', '.join(map(str, found))}"
        if identity in told.refused:
            yield "phantom", f"{identity} was refused, and is in the log"
        elif identity not in told.confirmed and identity not in told.unknown:
            yield "phantom", f"{identity} is in the log, and nobody has sent it"


def _passed(held: Held, started: Counter[MessageId]) -> Iterator[tuple[str, str]]:
    dead = Counter(held.dead)
    for identity, places in _by_identity(held).items():
        for place in places:
            passed = held.offsets.get(place.partition, 0) > place.offset
            if started[place] > 1:
                yield "doubled", f"{identity} at {place} has {started[place]} Starts"
            elif started[place] and not passed:
                yield "premature", f"{identity} at {place} was started, and the group's offset is before it"
            elif not started[place] and passed and dead[identity]:
                # A dead letter shows only its message's identity, which may be in the log several times.
                dead[identity] -= 1
            elif not started[place]:
                yield (
                    ("lost", f"{identity} at {place} was passed without a Start")
                    if passed
                    else ("waiting", f"{identity} at {place} waits")
                )
        if dead.pop(identity, 0):
            yield "doubled", f"{identity} has more dead letters than messages without a Start"
    for identity in dead:
        yield "phantom", f"{identity} is a dead letter, and not in the log"


def _by_identity(held: Held) -> dict[str, list[MessageId]]:
    found: dict[str, list[MessageId]] = {}
    for place, identity in held.messages.items():
        found.setdefault(identity, []).append(place)
    return found


def _places(held: Held, starts: Mapping[MessageId, Placed], redelivery_ms: int) -> Iterator[tuple[str, str]]:
    settled = set()
    for placed in held.markers:
        place, start = placed.marker.message_id, starts.get(placed.marker.message_id)
        if start is None:
            yield "misplaced", f"{placed} has no Start"
        elif placed.partition != start.partition or placed.offset < start.offset:
            yield "misplaced", f"{placed} is not behind its Start, {start.partition}-{start.offset}"
        elif place in settled:
            yield "misplaced", f"{placed} is behind the marker that settled the message"
        if _settles(placed.marker, redelivery_ms):
            settled.add(place)


def _deliveries(held: Held, told: Told) -> Iterator[tuple[str, str]]:
    started = {each.marker.message_id: each for each in held.markers if each.marker.type is MarkerType.START}
    for place, start in started.items():
        content = identity_of(start.marker.value)
        if held.messages.get(place, content) != content:
            yield "phantom", f"{place} holds {held.messages[place]}, and its Start {content}"
    for place, count in Counter(place for place, _ in told.received).items():
        if count > 1:
            yield "doubled", f"{place} was delivered {count} times"
    for place, identity in told.received:
        if held.messages.get(place) != identity:
            yield "phantom", f"{identity} was delivered as {place}, which holds {held.messages.get(place)}"
        if place not in started:
            yield "premature", f"{place} was delivered, and its Start is not committed"


def _settlements(held: Held, told: Told, redelivery_ms: int) -> Iterator[tuple[str, str]]:
    ended = {each.marker.message_id for each in held.markers if each.marker.type is MarkerType.END}
    settled = {each.marker.message_id for each in held.markers if _settles(each.marker, redelivery_ms)}
    for place in sorted(told.acked - ended):
        yield "lost", f"the ack of {place} was confirmed, and there is no End"
    for place in sorted(told.given_back - settled):
        yield "lost", f"the nack or reject of {place} was confirmed, and there is no marker of it"
    for place in sorted(told.given_back & ended):
        yield "misplaced", f"{place} was given back, and has an End"


def _settles(marker: Marker, redelivery_ms: int) -> bool:
    """Whether a marker settles its message. A KeepAlive with less than the redelivery time-out is a nack or reject."""
    if marker.type is MarkerType.KEEPALIVE:
        return marker.redeliver_after_ms < redelivery_ms
    return marker.type is MarkerType.END
