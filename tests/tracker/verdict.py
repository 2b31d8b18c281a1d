"""The verdict on tracked queues: every message is processed or dead, and none is redelivered without need. Pure.

1. Lost: a confirmed message that no consumer has ended in any of its deliveries, and that is no dead letter.
2. Repeated: a message that was redelivered, or became a dead letter, although its End was there before its deadline;
   a message whose delivery was redelivered twice; a message with two dead letters.
3. Early: a message that was redelivered before its deadline.
4. Phantom: a message, or a dead letter, that was never sent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from thresher.queue.wire.marker import Marker, MarkerType, MessageId

FAULTS = ("lost", "repeated", "early", "phantom")
# Timestamps and deadlines are whole milliseconds.
_ROUNDING_MS = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """A marker with the broker's timestamp and its writer."""

    at_ms: int
    marker: Marker
    by_tracker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The broker's records: identities of messages by offset, the origins of redelivered ones, and the markers."""

    messages: Mapping[MessageId, str]
    origins: Mapping[MessageId, MessageId]
    markers: Sequence[Timed]
    # The identity of each dead letter, once for each time it was written.
    dead: Sequence[str]
    confirmed: frozenset[str]
    sent: frozenset[str]


def judge(held: Tracked) -> Iterator[tuple[str, str]]:
    """Yield the kind of each fault, and a line about it."""
    stories: dict[MessageId, list[Timed]] = defaultdict(list)
    for timed in held.markers:
        stories[timed.marker.message_id].append(timed)
    ended = {place for place, story in stories.items() if any(_is_consumers_end(each) for each in story)}
    processed = {identity for place, identity in held.messages.items() if place in ended}
    dead = Counter(held.dead)
    for identity in sorted(held.confirmed - processed - dead.keys()):
        places = [str(place) for place, each in held.messages.items() if each == identity]
        yield "lost", f"{identity}, delivered as {', '.join(places)}, was neither processed nor is it a dead letter"
    for identity, count in dead.items():
        if count > 1:
            yield "repeated", f"{identity} has {count} dead letters"
    for identity in sorted({*held.messages.values(), *dead} - held.sent):
        yield "phantom", f"{identity} was never sent"
    for place, story in stories.items():
        yield from _decisions(place, story)


def _decisions(place: MessageId, story: Sequence[Timed]) -> Iterator[tuple[str, str]]:
    """Judge the trackers' decisions about one delivery: each End of a tracker is one."""
    deadline: int | None = None
    in_time = False
    decided = 0
    for timed in story:
        marker, at = timed.marker, timed.at_ms
        if marker.type is MarkerType.START and marker.read_to is None:
            deadline = at + marker.redeliver_after_ms
        elif marker.type is MarkerType.KEEPALIVE and deadline is not None and at <= deadline:
            # A KeepAlive after the deadline may come too late for the redelivery.
            deadline = at + (0 if marker.reject_reason is not None else marker.redeliver_after_ms)
        elif _is_consumers_end(timed):
            in_time = in_time or (deadline is not None and at < deadline)
        elif marker.type is MarkerType.END:
            decided += 1
            if in_time:
                yield "repeated", f"{place} came again, although it was ended in time: {story}"
            elif deadline is not None and at < deadline - _ROUNDING_MS:
                yield "early", f"{place} came again {deadline - at} ms early: {story}"
    if decided > 1:
        yield "repeated", f"{place} came again {decided} times: {story}"


def _is_consumers_end(timed: Timed) -> bool:
    return timed.marker.type is MarkerType.END and not timed.by_tracker
