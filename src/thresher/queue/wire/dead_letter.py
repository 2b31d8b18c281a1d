"""A dead letter: the record in the dead-letter topic of a message that is not delivered any more.

The topic is compacted. The key consists of the message's origin id, its time of sending and its queue. So a message has
one dead letter, however often it is written. A tombstone with the same key removes it. The time is part of the key
because origin ids repeat when the message topic is recreated.

A letter can always be written. A message that does not fit into one record is written in parts, in the letter's own
partition and transaction, before the letter: slices of the message as a Start. Of a message of more than `MOST_KEPT`
bytes, the first bytes are kept, and the letter says so: it cannot be replayed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from thresher.kafka.transactional import Produced
from thresher.queue.wire.marker import Headers, Marker, MarkerMalformed, MarkerType, MessageId, decode, encode
from thresher.queue.wire.record import (
    DEAD_CUT,
    DEAD_PARTS,
    DEAD_REASON,
    Record,
    headers_of,
    number_of,
    parse_message_id,
    record_of,
)

_SEPARATOR, _AT, _PART = b"/", b"@", b"part-"
# The sizes of parts, each tried if the topic refuses the one before. 0: the message's content is left out.
_PART_BYTES = (500_000, 100_000, 10_000, 0)
# The longest content of a letter, in bytes, and the longest reason, in characters.
MOST_KEPT, _MOST_REASON = 16_000_000, 1_000


class DeadLetter(NamedTuple):
    """A dead letter as it was read. Its record's id is its partition and offset in the dead-letter topic.

    `parts` are the keys of the letter's other records, and `missing` is how many of them were not found.
    `cut_from` is the size of a message that was cut.
    """

    key: bytes
    queue: bytes
    record: Record
    reason: str
    written_ms: int
    parts: tuple[bytes, ...] = ()
    missing: int = 0
    cut_from: int | None = None

    @property
    def incomplete(self) -> str | None:
        """Why the content is not the whole message; None if it is."""
        if self.cut_from is not None:
            return f"its content of {self.cut_from:,} bytes was cut when the letter was written"
        return f"{self.missing} of its {len(self.parts)} parts are lost" if self.missing else None


def first_part_bytes(record: Record, most_bytes: int) -> int | None:
    """Return the size of the parts that a message's letter is first tried in; None if one record holds it."""
    return None if record.size <= most_bytes else _PART_BYTES[0]


def next_part_bytes(refused: int | None) -> int | None:
    """Return the size of parts to try after the topic has refused this one; None if nothing smaller is left."""
    return next((each for each in _PART_BYTES if refused is None or each < refused), None)


def dead_key(queue: bytes, record: Record) -> bytes:
    """Return the key of a message's dead letter."""
    return b"%s%s%d%s%s" % (str(record.origin_id).encode(), _AT, record.enqueued_at_ms, _SEPARATOR, queue)


def dead_records(
    topic: str,
    queue: bytes,
    record: Record,
    reason: str,
    *,
    part_bytes: int | None,
    partition_of: Callable[[bytes], int],
) -> list[Produced]:
    """Return the records of a message's dead letter. `partition_of` returns a key's partition."""
    key = dead_key(queue, record)
    own: list[tuple[str, bytes | None]] = [(DEAD_REASON, reason[:_MOST_REASON].encode(errors="replace"))]
    if part_bytes is None:
        return [(topic, record.payload, key, -1, 0, [*headers_of(record), *own])]
    content, cut = _content(record) if part_bytes else (b"", True)
    parts = [content[start : start + part_bytes] for start in range(0, len(content), part_bytes or 1)]
    own.append((DEAD_PARTS, b"%d" % len(parts)))
    if cut:
        own.append((DEAD_CUT, b"%d" % record.size))
    head = [*headers_of(replace(record, headers=())), *own]
    place = partition_of(key)
    return [
        *((topic, part, part_key(key, number), place, 0, None) for number, part in enumerate(parts)),
        (topic, b"", key, place, 0, head),
    ]


def _content(record: Record) -> tuple[bytes, bool]:
    """Return a message as a Start, and whether a part of it had to be left out."""
    cut = record.size > MOST_KEPT
    kept = record
    if cut:
        # The payload's first bytes say most about what the message was.
        kept = replace(record, payload=record.payload[:MOST_KEPT], headers=())
    start = Marker(
        type=MarkerType.START, message_id=record.message_id, value=kept.payload, headers=kept.headers
    )  # fmt: skip
    return encode(start), cut


def part_key(key: bytes, number: int) -> bytes:
    """Return the key of a part of the letter with this key. It is no letter's key."""
    return b"%s%d%s%s" % (_PART, number, _SEPARATOR, key)


def is_part(key: bytes) -> bool:
    """Whether a record with this key is a part of a letter."""
    return key.startswith(_PART)


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
    own = dict(headers)
    reason = (own.get(DEAD_REASON) or b"").decode(errors="replace")
    record = record_of(place, payload, headers, timestamp_ms)
    record.origin_id = found[1]
    parts = number_of(own.get(DEAD_PARTS), 0, digits=4)
    return DeadLetter(
        key=key,
        queue=found[0],
        record=record,
        reason=reason,
        written_ms=timestamp_ms,
        parts=tuple(part_key(key, number) for number in range(parts)),
        missing=parts,
        cut_from=None if DEAD_CUT not in own else number_of(own[DEAD_CUT], 0, digits=14),
    )


def assembled(letter: DeadLetter, parts: Mapping[bytes, bytes]) -> DeadLetter:
    """Return a letter with the content of its parts, which are given by their keys."""
    if not letter.parts:
        return letter
    found = [parts[key] for key in letter.parts if key in parts]
    missing = len(letter.parts) - len(found)
    try:
        start = decode(b"".join(found))
    except MarkerMalformed:
        return letter._replace(missing=max(1, missing))
    record = replace(letter.record, payload=start.value, headers=start.headers)
    return letter._replace(record=record, missing=missing)
