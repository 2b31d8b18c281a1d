"""One-dimensional arrays in Postgres' binary format, for COPY and for settling thousands of rows.

psycopg encodes arrays element by element in Python, which takes most of the time of streaming a row with headers. Here
an array costs one pass over its items. See the decision record on the writer's COPY.
"""

import struct
import sys
from array import array
from collections.abc import Collection, Sequence

_TEXT, _BYTEA, _BIGINT, _TIMESTAMPTZ = 25, 17, 20, 1184
# Number of dimensions, whether there are NULLs, element type; then length and lower bound of the only dimension.
_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)
# A 64-bit element: its length, and eight bytes to be filled in.
_ITEM = _LENGTH(8) + bytes(8)
_EMPTY = {oid: struct.pack("!iiI", 0, 0, oid) for oid in (_TEXT, _BYTEA)}


def bytea_array(items: Sequence[bytes | None]) -> bytes:
    """Return a `bytea[]`; None is NULL."""
    return _array(_BYTEA, items)


def text_array(items: Sequence[str], codec: str) -> bytes:
    """Return a `text[]` as a client with this encoding sends it."""
    return _array(_TEXT, [item.encode(codec) for item in items])


def text_literal(items: Collection[str]) -> str:
    """Return a `text[]` as Postgres writes it, which takes thousands of items as fast as it can join them."""
    if any('"' in item or "\\" in item for item in items):
        items = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(items) + '"}' if items else "{}"


def encoded_text_array(items: Sequence[bytes | None]) -> bytes:
    """Return a `text[]` from texts that are already encoded; None is NULL."""
    return _array(_TEXT, items)


def bigint_array(items: Sequence[int], *, timestamps: bool = False) -> bytes:
    """Return a `bigint[]`, or a `timestamptz[]` of microseconds since 2000."""
    oid = _TIMESTAMPTZ if timestamps else _BIGINT
    if not items:
        return struct.pack("!iiI", 0, 0, oid)
    values = array("q", items)
    if sys.byteorder == "little":
        values.byteswap()
    data, body = values.tobytes(), bytearray(_ITEM * len(items))
    # Copies the first byte of every number, then the second byte of every number, and so on.
    for place in range(8):
        body[4 + place :: 12] = data[place::8]
    return _HEAD.pack(1, 0, oid, len(items), 1) + body


def received_array(content: bytes | None, *, text: bool) -> bytes:
    """Return an array of the server's as a `text[]` or a `bytea[]`, whatever its dimensions. None is an empty array."""
    oid = _TEXT if text else _BYTEA
    # The type of the items may be another one of texts.
    return _EMPTY[oid] if content is None else content[:8] + struct.pack("!I", oid) + content[12:]


def _array(oid: int, items: Sequence[bytes | None]) -> bytes:
    if not items:
        return _EMPTY[oid]
    parts = [_HEAD.pack(1, None in items, oid, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts.append(_LENGTH(len(item)))
            parts.append(item)
    return b"".join(parts)
