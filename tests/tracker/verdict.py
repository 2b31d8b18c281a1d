"""The verdict on tracked queues: whether every message was processed or died, and none came again without need. Pure.

1. Lost: a message that was confirmed, and that no consumer has ended in any of its deliveries, nor is a dead letter.
2. Repeated: a message that was redelivered, or became a dead letter, although its End was there before its deadline;
   one whose delivery came again twice; one with two dead letters.
3. Early: one that came again before its deadline.
4. Phantom: a message, or a dead letter, that nobody has sent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from thresher.queue.wire.marker import Marker, MarkerType, MessageId

FAULTS = ("lost", "repeated", "early", "phantom")
# Timestamps are whole milliseconds, and so are deadlines.
_ROUNDING_MS = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """A marker, when the broker has written it, and who wrote it. In the order of its partition."""

    at_ms: int
    marker: Marker
    by_tracker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What the broker holds: messages by place with their identity, and the origin that a redelivered one tells."""

    messages: Mapping[MessageId, str]
    origins: Mapping[MessageId, MessageId]
    markers: Sequence[Timed]
    # The identity of each dead letter, as often as it was written.
    dead: Sequence[str]
    confirmed: frozenset[str]
    sent: frozenset[str]


def judge(held: Tracked) -> Iterator[tuple[str, str]]:
    """Yield the name of each fault, and a line that tells of it."""
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
    """Judge what trackers made of one delivery: each of their Ends is a decision."""
    deadline: int | None = None
    in_time = False
    decided = 0
    for timed in story:
        marker, at = timed.marker, timed.at_ms
        if marker.type is MarkerType.START and marker.read_to is None:
            deadline = at + marker.redeliver_after_ms
        elif marker.type is MarkerType.KEEPALIVE and deadline is not None and at <= deadline:
            # One that comes later may find the message redelivered.
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
