"""The encoding of messages in the WAL, compared with the protobuf library."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given
from hypothesis import strategies as st

from thresher.outbox.log_message import VERSION, LoggedMessage, Unreadable, decode, encode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGE, _REPEATED, _OPTIONAL = _FIELD.TYPE_MESSAGE, _FIELD.LABEL_REPEATED, _FIELD.LABEL_OPTIONAL
_TYPES = {str(int(type_)): type_ for type_ in _FIELD.Type.values()}
_FIELDS = {"LogMessage": ["topic:9", "key:12", "value:12", "headers:h", "partition:13", "timestamp:4"],
           "Header": ["name:9", "value:12"]}  # fmt: skip


def library() -> dict[str, Any]:
    """Return the message classes of the protobuf library, as a user defines them."""
    file = descriptor_pb2.FileDescriptorProto(name="log.proto", package="log", syntax="proto2")
    for name, fields in _FIELDS.items():
        made = file.message_type.add(name=name)
        for number, field in enumerate(fields, 1):
            label, _, kind = field.partition(":")
            if kind == "h":
                made.field.add(name=label, number=number, type=_MESSAGE, label=_REPEATED, type_name=".log.Header")
            else:
                made.field.add(name=label, number=number, type=_TYPES[kind], label=_OPTIONAL)
    made = file.message_type.add(name="Newer")
    made.CopyFrom(next(each for each in file.message_type if each.name == "LogMessage"))
    made.name = "Newer"
    for number, kind in ((7, "12"), (8, "4"), (9, "6"), (10, "7"), (300, "9")):
        made.field.add(name=f"more{number}", number=number, type=_TYPES[kind], label=_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"log.{name}"))
        for name in ("LogMessage", "Newer")
    }


LIBRARY = library()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
contents = st.none() | st.binary(max_size=300)
rows = st.tuples(
    texts, contents, contents, st.lists(st.tuples(texts, contents), max_size=4),
    st.none() | st.integers(0, 2**31 - 1), st.none() | st.integers(0, 253_000_000_000_000_000),
)  # fmt: skip


def as_row(drawn: Any) -> Any:
    topic, key, value, headers, partition, micros = drawn
    moment = None if micros is None else _EPOCH + timedelta(microseconds=micros)
    return (topic, key, value, tuple(n for n, _ in headers), tuple(v for _, v in headers), partition, moment)


def by_library(drawn: Any, kind: str = "LogMessage") -> Any:
    topic, key, value, headers, partition, micros = drawn
    made = LIBRARY[kind](topic=topic, key=key, value=value, partition=partition, timestamp=micros)
    for name, header in headers:
        made.headers.add(name=name, value=header)
    return made


def expected(drawn: Any) -> LoggedMessage:
    topic, key, value, headers, partition, micros = drawn
    return LoggedMessage(
        topic, key, value, tuple(n for n, _ in headers), tuple(v for _, v in headers), partition, micros
    )


@given(rows)
@example(("t", b"x" * 127, b"x" * 128, [("n" * 16_384, None)], 128, 0))
def test_encoded_messages_equal_those_of_the_library(drawn: Any) -> None:
    assert encode(as_row(drawn)) == bytes([VERSION]) + by_library(drawn).SerializeToString()


@given(rows)
def test_encoded_messages_decode_to_the_same(drawn: Any) -> None:
    assert decode(encode(as_row(drawn))) == expected(drawn)


@given(rows, st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_fields_of_a_later_version_are_skipped(drawn: Any, more: bytes, number: int) -> None:
    made = by_library(drawn, "Newer")
    made.more7, made.more8, made.more9, made.more10, made.more300 = more, number, number, number % 2**32, "x"
    assert decode(bytes([VERSION]) + made.SerializeToString()) == expected(drawn)


@given(rows, rows)
def test_the_last_of_a_repeated_field_counts(first: Any, last: Any) -> None:
    both = by_library(first).SerializeToString() + by_library(last).SerializeToString()
    found = decode(bytes([VERSION]) + both)
    merged = LIBRARY["LogMessage"].FromString(both)
    assert (found.topic, list(found.header_names)) == (merged.topic, [header.name for header in merged.headers])
    assert found.value == (merged.value if merged.HasField("value") else None)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_or_refused(content: bytes) -> None:
    for tried in (content, bytes([VERSION]) + content):
        with contextlib.suppress(Unreadable):
            assert isinstance(decode(tried), LoggedMessage)


@given(rows, st.data())
def test_a_truncated_message_never_decodes_to_another_value(drawn: Any, data: st.DataObject) -> None:
    whole = encode(as_row(drawn))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = decode(cut)
    except Unreadable:
        return
    # Cut between two fields: the remaining fields are correct.
    whole_parts: list[Any] = list(expected(drawn))
    for part, of_all in zip(found, whole_parts, strict=True):
        assert part is None or part == of_all or (isinstance(part, tuple) and of_all[: len(part)] == part)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"\x02\x0a\x01t", "version is 2"),
        (b"\x01", "no topic"),
        (b"\x01\x0a\x05t", "cut short"),
        (b"\x01\x0a", "cut short"),
        (b"\x01\x0a\x01\xff", "not UTF-8"),
        (b"\x01\x0a\x01t\x28\xff\xff\xff\xff\x0f", "partition is 4294967295"),
        (b"\x01\x0a\x01t\x23", "no protocol buffer"),
        (b"\x01\x0a\x01t\x00\x00", "no protocol buffer"),
        (b"\x01\x0a\x01t\x30" + b"\xff" * 11, "cut short"),
        (b"\x01\x0a\x01t\x22\x03\x0a\x05n", "cut short"),
        (b"\x01\x0a\x01t\x3a\x05x", "cut short"),
    ],
)
def test_an_unreadable_message_gives_the_reason(content: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        decode(content)
