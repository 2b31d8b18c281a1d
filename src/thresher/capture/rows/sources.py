"""The sources of column values: fields of a record's JSON value, its key, or its metadata. Pure.

`customer.name` is a field of the value. `$key`, `$key.bytes`, `$key.json.id`, `$value`, `$value.bytes`, `$header.NAME`,
`$topic`, `$partition`, `$offset`, `$timestamp` and `$timestamp.ms` are parts of the record.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from thresher.capture.record import CapturedRecord
from thresher.core.errors import InvalidInput, shorten

# Returns a column's value for a record and the fields of its value.
Source = Callable[[CapturedRecord, Mapping[str, Any]], Any]

_OWN: dict[str, Source] = {
    "$key": lambda record, _: _text(record.key, "key"),
    "$key.bytes": lambda record, _: record.key,
    "$key.json": lambda record, _: _key_fields(record),
    "$value": lambda record, _: _text(record.value, "value"),
    "$value.bytes": lambda record, _: record.value,
    "$topic": lambda record, _: record.topic,
    "$partition": lambda record, _: record.partition,
    "$offset": lambda record, _: record.offset,
    "$timestamp": lambda record, _: _time(record.timestamp_ms),
    "$timestamp.ms": lambda record, _: record.timestamp_ms,
}
_KEY_FIELD, _HEADER = "$key.json.", "$header."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Malformed(Exception):  # noqa: N818 - a finding about one record, never shown as an error
    """A record's key or value does not fit the mapping."""


def source_of(text: str) -> Source:
    """Return the source that a text names. Raises `InvalidInput` for an unknown one."""
    if text in _OWN:
        return _OWN[text]
    if text.startswith(_KEY_FIELD) and (path := _path(text.removeprefix(_KEY_FIELD))):
        return lambda record, _: walk(_key_fields(record), path)
    if text.startswith(_HEADER) and (name := text.removeprefix(_HEADER)):
        return lambda record, _: _header(record, name)
    if not text.startswith("$") and (path := _path(text)):
        if len(path) == 1:
            field = path[0]
            return lambda _, fields: fields.get(field)
        return lambda _, fields: walk(fields, path)
    raise InvalidInput(
        f"{shorten(text)} is neither a field nor one of {', '.join(_OWN)}, {_KEY_FIELD}FIELD, {_HEADER}NAME"
    )


def needs_fields(text: str) -> bool:
    """Whether a source needs the fields of the decoded value."""
    return not text.startswith("$")


def is_of_key(text: str) -> bool:
    """Whether a source is the record's key, or a part of it. A tombstone has it too."""
    return text.startswith("$key")


def is_of_json(text: str) -> bool:
    """Whether a source returns decoded values: a string is then a value, not the text of a JSON document."""
    return needs_fields(text) or text.startswith(_KEY_FIELD)


def decoded(content: bytes, what: str) -> Mapping[str, Any]:
    """Return the fields of a JSON object in UTF-8. Numbers keep their digits. Raises `Malformed`."""
    try:
        found = _decode(content.decode().removeprefix("\ufeff"))
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise Malformed(f"the {what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed(f"the {what} is not a JSON object, but {shorten(found)}")
    return found


def walk(fields: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of fields; None if there is none."""
    for name in path:
        # The check for a dict is fast and fits JSON; a decoder may return other mappings.
        if type(fields) is not dict and not isinstance(fields, Mapping):
            return None
        fields = fields.get(name)
    return fields


def _path(text: str) -> tuple[str, ...]:
    parts = tuple(text.split("."))
    return parts if all(parts) else ()


def _text(content: bytes | None, what: str) -> str | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Malformed(f"the {what} is not UTF-8 text") from None


def _time(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise Malformed(f"its timestamp, {milliseconds} ms since 1970, is out of range") from None


def _key_fields(record: CapturedRecord) -> Mapping[str, Any] | None:
    return None if record.key is None else decoded(record.key, "key")


def _header(record: CapturedRecord, name: str) -> str | None:
    # The last header of a name counts, as in `Headers.lastHeader` of Kafka's Java client.
    for each, value in reversed(record.headers):
        if each == name:
            return _text(value, f"header {name}")
    return None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


# Made once: making a decoder takes as long as decoding a small value.
_decode = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_number).decode
