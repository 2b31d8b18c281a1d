"""Turns a value into the text that Postgres casts to the column's type. Pure."""

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from thresher.capture.rows.sources import Malformed


def column_text(value: Any) -> bytes | None:
    """Return the text, in UTF-8; None is NULL. Objects and lists become JSON.

    A text that Postgres cannot store is refused by the server, not here. Raises `Malformed` for a decoder's value that
    cannot be made a text.
    """
    if value is None:
        return None
    kind = type(value)
    if kind is str:
        return _encoded(value)
    if (text := _TEXTS.get(kind)) is not None:
        return text(value)
    # A subclass of str, such as an enumeration, is stored as text, not as JSON.
    return _encoded(value if isinstance(value, str) else json_text(value))


def json_column_text(value: Any) -> bytes | None:
    """Return the text for a JSON column: a string becomes a JSON string. None is NULL, as in every column."""
    return None if value is None else _encoded(json_text(value))


def array_text(value: Any) -> bytes | None:
    """Return the text for an array column: a list becomes an array."""
    return _encoded(_array(value)) if isinstance(value, list | tuple) else column_text(value)


def json_text(value: Any) -> str:
    """Return a value as JSON; numbers keep all their digits. Raises `Malformed`."""
    if isinstance(value, Mapping):
        fields = (f"{json.dumps(str(name), ensure_ascii=False)}:{json_text(each)}" for name, each in value.items())
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(json_text, value))}]"
    if isinstance(value, Decimal):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise Malformed(f"a value of type {type(value).__name__} cannot be stored") from None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(value: object) -> bytes:
    return str(value).encode()


def _iso(value: datetime | date | time) -> bytes:
    return value.isoformat().encode()


def _hex(value: bytes | bytearray | memoryview) -> bytes:
    return b"\\x" + bytes(value).hex().encode()


# Looked up by the exact type: faster than a series of `isinstance` calls.
_TEXTS: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: b"true" if value else b"false",
    int: _plain,
    float: _plain,
    Decimal: _plain,
    uuid.UUID: _plain,
    bytes: _hex,
    bytearray: _hex,
    memoryview: _hex,
    datetime: _iso,
    date: _iso,
    time: _iso,
}


def _array(values: list[Any] | tuple[Any, ...]) -> str:
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return _array(value)
    text = (column_text(value) or b"").decode("utf-8", "surrogatepass")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
