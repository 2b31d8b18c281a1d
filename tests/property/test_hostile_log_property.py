"""Strangers' bytes in the WAL cost no more than their size, and end in a row, a dead row or a refusal."""

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tail import wire
from thresher.db.names import TableName
from thresher.outbox import InvalidMessage, Message, Outbox, Shape
from thresher.outbox.admission import Admission, Limits
from thresher.outbox.log_message import VERSION, Unreadable, decode, encode
from thresher.outbox.shape import MOST_HEADERS
from thresher.tail import log_rows
from thresher.tail.log_reader import LogReader
from thresher.tail.log_source import TableSource
from thresher.tail.pgoutput import Garbled

HEAD = bytes([VERSION]) + b"\x0a\x01t"
TABLE = TableName(table="outbox", schema="app")
# Steps that a decoder may take for each byte, and at first.
PER_BYTE, AT_FIRST = 40, 400


def steps(run: Callable[[], Any]) -> int:
    """Return how many lines of Python `run` executes."""
    count = 0

    def traced(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        run()
    except (Unreadable, Garbled):
        pass
    finally:
        sys.settrace(before)
    return count


def varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


# Fields of protocol buffers, known, unknown, nested, endless and cut short.
small = st.one_of(
    st.binary(max_size=12),
    st.builds(field, st.sampled_from([0x0A, 0x12, 0x1A, 0x22, 0x3A]), st.binary(max_size=12)),
    st.builds(
        lambda tag, number: bytes([tag]) + varint(number), st.sampled_from([0x28, 0x30, 0x38]), st.integers(0, 2**70)
    ),
    st.just(b"\x22\xff\xff\xff\xff\x0f"),
    st.just(b"\x80" * 12),
)
hostile = st.lists(small, max_size=5).map(b"".join)


@given(hostile, hostile, st.integers(1, 3_000))
def test_decoding_a_message_takes_steps_in_proportion_to_its_size(head: bytes, part: bytes, times: int) -> None:
    for content in (HEAD + head + part * times, HEAD + field(0x22, part * times), head + part):
        assert steps(partial(decode, content)) <= AT_FIRST + PER_BYTE * len(content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (HEAD + b"\x22\x00" * 1_000_000, "more than 10,000 headers"),
        (HEAD + b"\x38\x01" * 1_000_000, "more than 1,000 fields"),
        (HEAD + b"\x0a\x01t" * 1_000_000, "more than 1,000 fields"),
        (HEAD + field(0x22, b"\x0a\x01n" * 1_000_000), "more than 100 fields"),
    ],
    ids=["headers", "unknown fields", "topics", "names of one header"],
)
def test_content_with_too_many_fields_is_refused_early(content: bytes, why: str) -> None:
    def read() -> None:
        with pytest.raises(Unreadable, match=why):
            decode(content)

    assert steps(read) < 60 * MOST_HEADERS


@pytest.mark.parametrize("shape", [Shape.THRESHER, Shape.GOHARVEST])
def test_a_message_with_more_headers_than_a_tail_reads_is_refused(shape: Shape) -> None:
    row = Admission(shape, Limits(message_bytes=10**7)).row
    admitted = row(Message(topic="t", key="k", value="", headers=[("n", "v")] * MOST_HEADERS))
    if shape is Shape.THRESHER:
        assert len(decode(encode(admitted)).header_names) == MOST_HEADERS
    with pytest.raises(InvalidMessage, match=r"10,001 headers: at most 10,000"):
        row(Message(topic="t", key="k", value="", headers=[("n", "v")] * (MOST_HEADERS + 1)))


def inserted(row: list[bytes | None]) -> LogReader:
    made = LogReader(TableSource(table=TABLE))
    made.feed(wire.data(wire.relation(7, "app", "outbox", wire.COLUMNS), 0))
    made.feed(wire.data(wire.begin(90), 10))
    made.feed(wire.data(wire.insert(7, row), 20))
    return made


def test_a_row_with_too_many_headers_is_malformed_and_weighs_what_it_takes() -> None:
    full = inserted(wire.outbox_row(1, names=[b"ab"] * MOST_HEADERS, contents=[b"cd"] * MOST_HEADERS))
    assert full.size > 100 * MOST_HEADERS
    (row,) = full.take().rows  # type: ignore[union-attr]
    assert (len(row[5]), row[9]) == (MOST_HEADERS, None)
    values = wire.outbox_row(1, names=[b"ab"] * (MOST_HEADERS + 1), contents=[])
    over = inserted(values)
    assert over.size > len(values[5] or b"")
    (row,) = over.take().rows  # type: ignore[union-attr]
    assert (row[5], row[9], row[11][0]) == ((), "headers", values[5])


def test_a_row_with_millions_of_headers_takes_few_steps() -> None:
    row = wire.outbox_row(1)
    count = 1_000_000
    row[5] = struct.pack(">iiIii", 1, 1, 25, count, 1) + struct.pack(">i", -1) * count
    row[6] = None
    made = LogReader(TableSource(table=TABLE))
    made.feed(wire.data(wire.relation(7, "app", "outbox", wire.COLUMNS), 0))
    made.feed(wire.data(wire.begin(90), 10))
    frame = wire.data(wire.insert(7, row), 20)
    assert steps(lambda: made.feed(frame)) < AT_FIRST
    assert made.size < 4 * len(frame)


dimensions = st.lists(st.sampled_from([0, 1, 2, 3, 7, 2**31 - 1]), max_size=7)


@given(dimensions, st.lists(st.none() | st.binary(max_size=3), max_size=30), st.integers(-3, 8))
def test_an_array_costs_no_more_than_its_bytes(counts: list[int], items: list[bytes | None], claimed: int) -> None:
    """Counts and numbers of dimensions that do not fit the items are refused without following them."""
    array = struct.pack(">iiI", claimed, 0, 25) + b"".join(struct.pack(">ii", count, 1) for count in counts)
    array += b"".join(struct.pack(">i", -1) if item is None else struct.pack(">i", len(item)) + item for item in items)
    row = wire.outbox_row(1)
    row[5] = array
    assert steps(lambda: inserted(row)) <= 3 * AT_FIRST + PER_BYTE * len(array)


def test_long_topics_and_header_names_are_not_remembered() -> None:
    made = LogReader(TableSource(table=TABLE))
    made.feed(wire.data(wire.relation(7, "app", "outbox", wire.COLUMNS), 0))
    made.feed(wire.data(wire.begin(90), 10))
    for number in range(50):
        long = b"%d" % number * 5_000
        made.feed(wire.data(wire.insert(7, wire.outbox_row(1, topic=long, names=[long], contents=[None])), 20 + number))
    (table,) = [each for each in made._tables.values() if each is not None]
    assert sum(map(len, [*table._texts, *table._names])) < log_rows._REMEMBERED_BYTES


def test_an_outbox_remembers_no_long_names() -> None:
    outbox = Outbox()
    for number in range(50):
        outbox._admission.row(Message(topic="t", headers=[(f"{number}" * 5_000, None)]))
    assert not outbox._admission._name_bytes
