"""From records to row changes: sources, types as text, tombstones, and flawed records."""

import enum
import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from thresher.capture.record import CapturedRecord, Flaw
from thresher.capture.rows.column_text import column_text
from thresher.capture.rows.guard import Change, Guard
from thresher.capture.rows.mapping import Mapper, TopicMapping
from thresher.capture.rows.sources import source_of
from thresher.core.errors import InvalidInput
from thresher.db import TableName

TABLE = TableName(table="orders")


class Colour(enum.StrEnum):
    """A string enum."""

    RED = "red"


def record(value: Any = None, key: bytes | None = b"k1", **more: Any) -> CapturedRecord:
    content = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return CapturedRecord(
        "orders", more.pop("partition", 2), more.pop("offset", 7), more.pop("timestamp_ms", 1_000), key, content, **more
    )


def mapper(columns: dict[str, str], key: tuple[str, ...] = ("id",), **more: Any) -> Mapper:
    mapping = TopicMapping(topic="orders", table=TABLE, key=key, columns=columns)
    return Mapper(mapping, **more)


def mapped(columns: dict[str, str], given: CapturedRecord, **more: Any) -> Change:
    found = mapper(columns, **more).map(given)
    assert isinstance(found, Change), found
    return found


def flaw(columns: dict[str, str], given: CapturedRecord, **more: Any) -> str:
    found = mapper(columns, **more).map(given)
    assert isinstance(found, Flaw), found
    return f"{found.kind}: {found.reason}"


def test_key_and_fields_become_columns() -> None:
    value = {"customer": {"name": "Ada", "id": 3}, "total": 1.10, "paid": True, "note": None, "lines": [1, {"a": 2.50}]}
    columns = {
        "id": "$key", "name": "customer.name", "total": "total", "paid": "paid", "note": "note", "none": "a.b.c",
        "lines": "lines", "place": "$offset", "part": "$partition", "at": "$timestamp", "ms": "$timestamp.ms",
        "topic": "$topic",
    }  # fmt: skip
    found = mapped(columns, record(value))
    assert found.key == (b"k1",)
    assert found.guard == Guard(2, 7, 1_000)
    assert found.values == (
        b"k1", b"Ada", b"1.1", b"true", None, None, b'[1,{"a":2.5}]', b"7", b"2", b"1970-01-01T00:00:01+00:00",
        b"1000", b"orders",
    )  # fmt: skip


def test_numbers_keep_all_of_their_digits() -> None:
    text = (
        b'{"a": 12345678901234567890.123456789, "b": {"c": 0.1234567890123456789}, "d": 123456789012345678901234567890}'
    )
    found = mapped({"id": "$key", "a": "a", "b": "b", "d": "d"}, record(text))
    assert found.values == (
        b"k1", b"12345678901234567890.123456789", b'{"c":0.1234567890123456789}', b"123456789012345678901234567890",
    )  # fmt: skip


def test_a_byte_order_mark_is_no_part_of_a_value() -> None:
    assert mapped({"id": "$key", "a": "a"}, record(b'\xef\xbb\xbf{"a": 1}')).values == (b"k1", b"1")


def test_a_key_may_be_bytes_or_json_or_a_field() -> None:
    assert mapped({"id": "$key.bytes"}, record({}, key=b"\x00\xff")).key == (b"\\x00ff",)
    assert mapped({"id": "$key.json.id.no"}, record({}, key=b'{"id": {"no": 4}}')).key == (b"4",)
    assert mapped({"id": "order.id"}, record({"order": {"id": "o1"}}, key=None)).key == (b"o1",)
    two = mapped({"a": "$key", "b": "b", "c": "c"}, record({"b": 1, "c": 2}), key=("b", "a"))
    assert (two.key, two.values) == ((b"1", b"k1"), (b"k1", b"1", b"2"))


def test_headers_and_whole_values_become_columns() -> None:
    given = record(b"not json \xff", headers=(("a", b"1"), ("a", b"2"), ("b", None)))
    found = mapped({"id": "$key", "raw": "$value.bytes", "a": "$header.a", "b": "$header.b", "c": "$header.c"}, given)
    assert found.values == (b"k1", b"\\x6e6f74206a736f6e20ff", b"2", None, None)
    assert mapped({"id": "$key", "raw": "$value"}, record(b"text")).values == (b"k1", b"text")


def test_a_tombstone_is_a_delete_by_its_key() -> None:
    found = mapped({"id": "$key", "total": "total"}, record())
    assert (found.key, found.values) == ((b"k1",), None)
    why = flaw({"id": "id"}, record())
    assert why == "malformed: a tombstone has no value for the key column id: map it from the record's key"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "malformed: the value is not JSON"),
        (b"\xff\xfe", "malformed: the value is not JSON"),
        (b"[1]", "malformed: the value is not a JSON object"),
        (b'{"a": NaN}', "malformed: the value is not JSON: NaN is not a JSON number"),
        (b"[" * 100_000, "malformed: the value is not JSON"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "malformed: the value is not JSON"),
        (b'{"other": 1e1000000000000000000000}', "malformed: the value is not JSON"),
    ],
)
def test_a_value_that_is_no_json_object_is_flawed(value: bytes, why: str) -> None:
    assert flaw({"id": "$key", "a": "a"}, record(value)).startswith(why)


@pytest.mark.parametrize("arrays", [(), ("a",)])
@pytest.mark.parametrize("depth", [300, 500, 700, 900])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a": ', b"}")])
def test_a_deeply_nested_value_fails_only_its_record(
    opening: bytes, closing: bytes, depth: int, arrays: tuple[str, ...]
) -> None:
    value = b'{"a": ' + opening * depth + b"1" + closing * depth + b"}"
    assert isinstance(mapper({"id": "$key", "a": "a"}, arrays=arrays).map(record(value)), Change | Flaw)


class Untold(Exception):
    """An error whose text cannot be computed."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_failing_decoder_fails_only_its_record() -> None:
    def decode(given: CapturedRecord) -> Any:
        if given.value == b"raise":
            raise Untold
        return {"a": 10**5_000}

    columns = {"id": "$key", "a": "a"}
    assert flaw(columns, record(b"raise"), decoder=decode) == "malformed: the decoder failed: Untold"
    assert flaw(columns, record(b"long"), decoder=decode).startswith("malformed: it cannot be mapped: ValueError")


def test_a_string_for_json_is_a_json_string() -> None:
    columns = {"id": "$key", "a": "a", "b": "$header.b", "c": "$key.json.c"}
    given = record({"a": "123"}, key=b'{"c": "x"}', headers=(("b", b'{"d": 1}'),))
    assert mapped(columns, given, json={"a", "b", "c"}).values == (b'{"c": "x"}', b'"123"', b'{"d": 1}', b'"x"')
    assert mapped({"id": "$key", "a": "a"}, record({"a": None}), json={"a"}).values == (b"k1", None)


def test_a_record_without_its_key_is_flawed() -> None:
    assert flaw({"id": "$key", "a": "a"}, record({}, key=None)).startswith("no_key: it has no value for the key column")
    assert flaw({"id": "$key"}, record({}, key=b"\xff")) == "malformed: the key is not UTF-8 text"
    assert flaw({"id": "$key.json.id"}, record({}, key=b"no")).startswith("malformed: the key is not JSON")
    assert flaw({"id": "$key.json.id"}, record({}, key=b'{"id": 1e1000000000000000000000}')).startswith("malformed: ")
    assert flaw({"id": "$key", "at": "$timestamp"}, record({}, timestamp_ms=2**62)).startswith(
        "malformed: its timestamp"
    )


def test_a_decoder_gives_the_fields_or_a_tombstone() -> None:
    def decode(given: CapturedRecord) -> Any:
        return {b"gone": None, b"bad": [], b"a": {"a": datetime(2026, 1, 2, tzinfo=UTC), "b": b"\x01"}}[
            given.value or b""
        ]

    columns = {"id": "$key", "a": "a", "b": "b"}
    assert mapped(columns, record(b"a"), decoder=decode).values == (b"k1", b"2026-01-02T00:00:00+00:00", b"\\x01")
    assert mapped(columns, record(b"gone"), decoder=decode).values is None
    assert flaw(columns, record(b"bad"), decoder=decode).startswith("malformed: the decoder returned list")
    assert flaw(columns, record(b"x"), decoder=decode).startswith("malformed: the decoder failed: KeyError")


def test_lists_are_arrays_where_the_column_is_one() -> None:
    columns = {"id": "$key", "a": "a"}
    value = {"a": [1, 'x"y\\', None, [True], {"b": 1}]}
    assert mapped(columns, record(value), arrays={"a"}).values == (
        b"k1",
        b'{"1","x\\"y\\\\",NULL,{"true"},"{\\"b\\":1}"}',
    )
    assert mapped(columns, record(value)).values == (b"k1", b'[1,"x\\"y\\\\",null,[true],{"b":1}]')


def test_python_values_become_texts() -> None:
    number = uuid.uuid4()
    assert column_text(number) == str(number).encode()
    assert column_text(Decimal("1.50")) == b"1.50"
    assert column_text(Colour.RED) == b"red"
    assert column_text("a\ud800") == b"a\xed\xa0\x80"


@pytest.mark.parametrize("text", ["", "$", "$nothing", "a..b", "$header.", "$key.json."])
def test_a_source_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        source_of(text)
