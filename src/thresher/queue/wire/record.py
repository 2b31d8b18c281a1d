"""A record of the message topic: key, payload, and the headers that hold the history of a redelivered message.

A record that an application sent has no history headers, only those for its own limits. An unreadable header counts as
absent: any program may write to the topic, and one bad record must not stop a queue.
"""

from dataclasses import dataclass

from thresher.queue.wire.marker import SYNTHETIC, Headers, MessageId

PREFIX = "thresher-"
DELIVERY_COUNT = f"{PREFIX}delivery-count"
ORIGIN_ID = f"{PREFIX}origin-id"
ENQUEUED_AT = f"{PREFIX}enqueued-at"
MAX_DELIVERIES = f"{PREFIX}max-deliveries"
TTL = f"{PREFIX}ttl"
FIRST_STARTED = f"{PREFIX}first-started"
DEAD_REASON = f"{PREFIX}dead-reason"
# Of a dead letter that one record does not hold: the number of its parts; and the size of a message that was cut.
DEAD_PARTS, DEAD_CUT = f"{PREFIX}dead-parts", f"{PREFIX}dead-cut"
OWN = frozenset(
    {DELIVERY_COUNT, ORIGIN_ID, ENQUEUED_AT, MAX_DELIVERIES, TTL, FIRST_STARTED, DEAD_REASON, DEAD_PARTS, DEAD_CUT}
)
# The overhead of a header, in addition to its name and value.
HEADER_BYTES = 16
# The last millisecond that `datetime` can hold. A producer may set any timestamp.
_LATEST_MS = 253_402_300_799_999


@dataclass(slots=True, kw_only=True)
class Record:
    """A message in the message topic. `headers` are the application's.

    The limits are the message's own, or None if its queue's apply. `first_started_ms` is the time of the first
    delivery's Start, by the tracker's clock; None for a message that was never redelivered.
    """

    message_id: MessageId
    payload: bytes
    headers: Headers
    delivery_count: int
    origin_id: MessageId
    enqueued_at_ms: int
    max_deliveries: int | None = None
    ttl_ms: int | None = None
    first_started_ms: int | None = None

    @property
    def size(self) -> int:
        """The approximate size of the message in bytes."""
        return len(self.payload) + sum(len(name) + len(value or b"") + HEADER_BYTES for name, value in self.headers)


def record_of(message_id: MessageId, payload: bytes | None, headers: Headers, timestamp_ms: int) -> Record:
    """Return a record as it was read. `timestamp_ms` is the record's timestamp."""
    if not 0 <= timestamp_ms <= _LATEST_MS:
        timestamp_ms = 0 if timestamp_ms < 0 else _LATEST_MS
    if not headers:
        return Record(
            message_id=message_id,
            payload=payload or b"",
            headers=(),
            delivery_count=1,
            origin_id=message_id,
            enqueued_at_ms=timestamp_ms,
        )
    own = {name: value or b"" for name, value in headers if name in OWN}
    return Record(
        message_id=message_id,
        payload=payload or b"",
        headers=tuple(header for header in headers if header[0] not in OWN),
        delivery_count=number_of(own.get(DELIVERY_COUNT), 1, digits=9),
        origin_id=_message_id(own.get(ORIGIN_ID), message_id),
        enqueued_at_ms=number_of(own.get(ENQUEUED_AT), timestamp_ms, digits=14),
        max_deliveries=number_of(own.get(MAX_DELIVERIES), 0, digits=9) or None,
        ttl_ms=number_of(own.get(TTL), 0, digits=14) or None,
        first_started_ms=number_of(own.get(FIRST_STARTED), 0, digits=14) or None,
    )


def headers_of(record: Record) -> list[tuple[str, bytes | None]]:
    """Return the headers of a redelivered message or a dead letter, which hold the message's history."""
    own: list[tuple[str, bytes | None]] = [
        (DELIVERY_COUNT, str(record.delivery_count).encode()),
        (ORIGIN_ID, str(record.origin_id).encode()),
        (ENQUEUED_AT, str(record.enqueued_at_ms).encode()),
    ]
    if record.first_started_ms is not None:
        own.append((FIRST_STARTED, str(record.first_started_ms).encode()))
    given = [(_sendable(name), value) for name, value in record.headers]
    return [*given, *own, *limit_headers(record.max_deliveries, record.ttl_ms)]


def _sendable(name: str) -> str:
    """Return a header's name as text, with undecodable bytes and NUL escaped: the client accepts neither."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace").replace("\0", "\\x00")


def limit_headers(max_deliveries: int | None, ttl_ms: int | None) -> list[tuple[str, bytes | None]]:
    """Return the headers for a message's own limits."""
    limits = ((MAX_DELIVERIES, max_deliveries), (TTL, ttl_ms))
    return [(name, str(value).encode()) for name, value in limits if value is not None]


def number_of(content: bytes | None, otherwise: int, *, digits: int) -> int:
    """Return the number in a header; `otherwise` if the header is absent, zero or no number of so many digits."""
    # 9 digits fit a marker's delivery count; 14 digits of milliseconds end before the year 9999, the last of
    # `datetime`.
    if content is None or not content.isdigit() or len(content) > digits:
        return otherwise
    return int(content) or otherwise


def _message_id(content: bytes | None, otherwise: MessageId) -> MessageId:
    return (None if content is None else parse_message_id(content)) or otherwise


def parse_message_id(content: bytes) -> MessageId | None:
    """Parse a message id; None if this is not one."""
    partition, _, offset = content.partition(b"-")
    if partition != b"d" and not (partition.isdigit() and len(partition) <= 9):
        return None
    if not offset.isdigit() or len(offset) > 19 or int(offset) >= 2**63:
        return None
    return MessageId(SYNTHETIC if partition == b"d" else int(partition), int(offset))
