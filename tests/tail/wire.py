"""Replication frames as a server sends them, built for tests."""

import hmac
import struct
from collections.abc import Mapping, Sequence

from thresher.db.log_emitter import LogKey

EPOCH = 946_684_800_000_000
# Type OIDs by column name, in Thresher's own shape.
COLUMNS = {
    "id": 20, "create_time": 1184, "kafka_topic": 1043, "kafka_key": 17, "kafka_value": 17, "kafka_header_keys": 1009,
    "kafka_header_values": 1001, "kafka_partition": 23, "kafka_timestamp": 1184, "dispatched_time": 1184,
    "leader_id": 2950,
}  # fmt: skip


KEY = bytes(range(64))
XID = 7


def log_key(key: bytes = KEY) -> LogKey:
    return LogKey(bytes(byte ^ 0x36 for byte in key), bytes(byte ^ 0x5C for byte in key))


def log_keys(**keys: bytes) -> tuple[int, Mapping[int, LogKey]]:
    """Return what the database says of its keys: `k1=…` is the first one."""
    return 0, {int(name[1:]): log_key(key) for name, key in (keys or {"k1": KEY}).items()}


def sealed(content: bytes, prefix: str, place: int, *, number: int = 1, key: bytes = KEY, xid: int = XID) -> bytes:
    """Return a message as an outbox's function writes it, sealed by the library's HMAC."""
    bound = prefix.encode() + b"\0" + struct.pack(">IQ", xid, place)
    return struct.pack(">BiQ", 2, number, place) + hmac.digest(key, bound + content, "sha256") + content


def data(message: bytes, at: int) -> bytes:
    return struct.pack(">cQQq", b"w", at, at, 0) + message


def keep_alive(at: int, *, reply: bool = False) -> bytes:
    return struct.pack(">cQqB", b"k", at, 0, reply)


def begin(commit: int, time: int = EPOCH, xid: int = XID) -> bytes:
    return struct.pack(">cQqI", b"B", commit, time - EPOCH, xid)


def commit(commit_: int, end: int, time: int = EPOCH) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, commit_, end, time - EPOCH)


def relation(id_: int, schema: str, name: str, columns: dict[str, int]) -> bytes:
    parts = [struct.pack(">cI", b"R", id_), schema.encode(), b"\0", name.encode(), b"\0d"]
    parts.append(struct.pack(">H", len(columns)))
    for column, type_ in columns.items():
        parts += [b"\0", column.encode(), b"\0", struct.pack(">Ii", type_, -1)]
    return b"".join(parts)


def insert(id_: int, values: Sequence[bytes | None]) -> bytes:
    parts = [struct.pack(">cIcH", b"I", id_, b"N", len(values))]
    parts += [b"n" if value is None else b"b" + struct.pack(">I", len(value)) + value for value in values]
    return b"".join(parts)


def message(at: int, prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    head = struct.pack(">cBQ", b"M", transactional, at) + prefix.encode() + b"\0"
    return head + struct.pack(">I", len(content)) + content


def array(type_: int, items: Sequence[bytes | None]) -> bytes:
    if not items:
        return struct.pack(">iiI", 0, 0, type_)
    parts = [struct.pack(">iiIii", 1, None in items, type_, len(items), 1)]
    parts += [struct.pack(">i", -1 if item is None else len(item)) + (item or b"") for item in items]
    return b"".join(parts)


def outbox_row(
    id_: int,
    *,
    topic: bytes = b"t",
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    names: Sequence[bytes] = (),
    contents: Sequence[bytes | None] = (),
    partition: int | None = None,
    timestamp: int | None = None,
    created: int = 0,
    sent: int | None = None,
) -> list[bytes | None]:
    return [
        struct.pack(">q", id_), struct.pack(">q", created), topic, key, value, array(25, list(names)),
        array(17, list(contents)), None if partition is None else struct.pack(">i", partition),
        None if timestamp is None else struct.pack(">q", timestamp), None if sent is None else struct.pack(">q", sent),
        None,
    ]  # fmt: skip
