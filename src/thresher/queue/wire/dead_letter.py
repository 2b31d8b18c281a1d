"""A dead letter: the record in the dead-letter topic of a message that is not delivered any more.

The topic is compacted. The key consists of the message's origin id, its time of sending and its queue. So a message has
one dead letter, however often it is written. A tombstone with the same key removes it. The time is part of the key
because origin ids repeat when the message topic is recreated.
"""

from typing import NamedTuple

from thresher.queue.wire.marker import Headers, MessageId
from thresher.queue.wire.record import DEAD_REASON, Record, headers_of, parse_message_id, record_of

_SEPARATOR, _AT = b"/", b"@"


class DeadLetter(NamedTuple):
    """A dead letter as it was read. Its record's id is its partition and offset in the dead-letter topic."""

    key: bytes
    queue: bytes
    record: Record
    reason: str
    written_ms: int


def dead_key(queue: bytes, record: Record) -> bytes:
    """Return the key of a message's dead letter."""
    return b"%s%s%d%s%s" % (str(record.origin_id).encode(), _AT, record.enqueued_at_ms, _SEPARATOR, queue)


def dead_headers(record: Record, reason: str) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message's dead letter."""
    return [*headers_of(record), (DEAD_REASON, reason.encode(errors="replace"))]


def queue_and_origin(key: bytes) -> tuple[bytes, MessageId] | None:
    """Return the queue and the origin id in a dead letter's key; None if this is not such a key."""
    origin, separator, queue = key.partition(_SEPARATOR)
    found = parse_message_id(origin.partition(_AT)[0])
    return None if found is None or not separator else (queue, found)


def dead_letter_of(
    place: MessageId, key: bytes, payload: bytes, headers: Headers, timestamp_ms: int
) -> DeadLetter | None:
    """Return the dead letter in a record; None if the record is not a dead letter."""
    found = queue_and_origin(key)
    if found is None:
        return None
    reasons = [value or b"" for name, value in headers if name == DEAD_REASON]
    reason = reasons[-1].decode(errors="replace") if reasons else ""
    record = record_of(place, payload, headers, timestamp_ms)
    record.origin_id = found[1]
    return DeadLetter(key=key, queue=found[0], record=record, reason=reason, written_ms=timestamp_ms)
