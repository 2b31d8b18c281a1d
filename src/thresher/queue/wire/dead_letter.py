"""A dead letter: the record of the dead topic that keeps a message which is not delivered any more.

The topic is compacted. A message's key is its queue, its origin id and when it was sent, so that it is there once,
however often it was written; an empty record with the same key takes it out. The time is part of it because origin ids
come again where the message topic was made anew.
"""

from typing import NamedTuple

from thresher.queue.wire.marker import Headers, MessageId
from thresher.queue.wire.record import DEAD_REASON, Record, headers_of, parse_message_id, record_of

_SEPARATOR, _AT = b"/", b"@"


class DeadLetter(NamedTuple):
    """A dead letter as it was read. Its record's id is its place in the dead topic."""

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
    """Return whose dead letter has this key; None where it is nobody's."""
    origin, separator, queue = key.partition(_SEPARATOR)
    found = parse_message_id(origin.partition(_AT)[0])
    return None if found is None or not separator else (queue, found)


def dead_letter_of(
    place: MessageId, key: bytes, payload: bytes, headers: Headers, timestamp_ms: int
) -> DeadLetter | None:
    """Return a dead letter as it was read; None where a record is none."""
    found = queue_and_origin(key)
    if found is None:
        return None
    reasons = [value or b"" for name, value in headers if name == DEAD_REASON]
    reason = reasons[-1].decode(errors="replace") if reasons else ""
    record = record_of(place, payload, headers, timestamp_ms)
    record.origin_id = found[1]
    return DeadLetter(key=key, queue=found[0], record=record, reason=reason, written_ms=timestamp_ms)
