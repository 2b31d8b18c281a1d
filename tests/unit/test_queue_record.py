"""Headers carry a record's past. With any headers, the message is read, started and delivered."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.queue.message import Message, Progress
from thresher.queue.wire.dead_letter import (
    MOST_KEPT,
    DeadLetter,
    assembled,
    dead_letter_of,
    dead_records,
    is_part,
    next_part_bytes,
)
from thresher.queue.wire.marker import Headers, Marker, MarkerType, MessageId, decode, encode
from thresher.queue.wire.record import (
    DELIVERY_COUNT,
    ENQUEUED_AT,
    FIRST_STARTED,
    ORIGIN_ID,
    OWN,
    Record,
    headers_of,
    limit_headers,
    record_of,
)

PLACE = MessageId(3, 14)
TIME = 1_700_000_000_000
# Values of a hostile writer: numbers that are too large, too long or malformed.
HOSTILE = [b"", b"-1", b"0", b"9" * 9, b"9" * 14, b"9" * 18, b"9" * 400, b"1.5", b" 1", b"1-", b"-", b"1-2-3", b"\xb2"]
numbers = st.one_of(st.sampled_from(HOSTILE), st.from_regex(rb"[0-9]+-?[0-9]*", fullmatch=True))
own_headers = st.tuples(st.sampled_from(sorted(OWN)), numbers)
# The client ends a name at NUL.
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
other_headers = st.tuples(names | st.sampled_from(sorted(OWN)), st.none() | st.binary(max_size=40))
header_lists = st.lists(own_headers | other_headers, max_size=8).map(tuple)


def test_a_record_without_headers_is_delivered_the_first_time() -> None:
    record = record_of(PLACE, b"payload", (), TIME)
    assert (record.payload, record.headers, record.delivery_count) == (b"payload", (), 1)
    assert (record.origin_id, record.enqueued_at_ms) == (PLACE, TIME)


def test_a_null_payload_is_an_empty_one() -> None:
    assert record_of(PLACE, None, (), TIME).payload == b""
    assert record_of(PLACE, None, (("h", b"v"),), TIME).payload == b""


def test_a_redelivered_record_carries_its_past() -> None:
    headers: Headers = (("h", b"v"), (DELIVERY_COUNT, b"4"), (ORIGIN_ID, b"1-2"), (ENQUEUED_AT, b"77"))
    record = record_of(PLACE, b"payload", headers, TIME)
    assert (record.delivery_count, record.origin_id, record.enqueued_at_ms) == (4, MessageId(1, 2), 77)
    assert record.headers == (("h", b"v"),), "our headers are not shown to the application"


def test_the_applications_headers_keep_order_and_repeats() -> None:
    headers: Headers = (("b", b"1"), ("a", None), ("b", b"2"), ("", b""))
    assert record_of(PLACE, b"", headers, TIME).headers == headers


def test_a_record_and_its_headers_read_back_the_same() -> None:
    headers: Headers = (("h", b"v"), (DELIVERY_COUNT, b"4"), (ORIGIN_ID, b"1-2"), (ENQUEUED_AT, b"77"))
    record = record_of(PLACE, b"payload", headers, TIME)
    assert record_of(PLACE, b"payload", tuple(headers_of(record)), TIME + 1) == record


def test_a_delayed_message_has_an_origin_too() -> None:
    origin = MessageId(-1, 2**62)
    assert record_of(PLACE, b"", ((ORIGIN_ID, str(origin).encode()),), TIME).origin_id == origin


def test_limits_and_the_first_start_read_back_the_same() -> None:
    headers = (*limit_headers(3, 5_000), (FIRST_STARTED, b"77"))
    record = record_of(PLACE, b"payload", headers, TIME)
    assert (record.max_deliveries, record.ttl_ms, record.first_started_ms, record.headers) == (3, 5_000, 77, ())
    assert record_of(PLACE, b"payload", tuple(headers_of(record)), TIME) == record
    assert limit_headers(None, None) == []


def test_a_dead_letter_has_queue_and_origin_as_key() -> None:
    record = record_of(PLACE, b"payload", ((ORIGIN_ID, b"1-2"), ("h", b"v")), TIME)
    letter = read_again(record, "too large", None)
    assert letter.key == b"1-2@%d/a/b" % TIME
    assert (letter.queue, letter.reason, letter.incomplete) == (b"a/b", "too large", None)
    assert letter.record.origin_id == MessageId(1, 2)
    assert letter.record.headers == (("h", b"v"),)


@pytest.mark.parametrize("key", [b"", b"queue", b"1-2", b"/queue", b"1/queue", b"x-2/queue"])
def test_a_record_with_another_key_is_no_dead_letter(key: bytes) -> None:
    assert dead_letter_of(PLACE, key, b"payload", (), TIME) is None


def test_a_reason_that_is_not_utf8_is_written() -> None:
    assert read_again(record_of(PLACE, b"", (), TIME), "\ud800", None).reason == "?"


def test_a_reason_of_any_length_fits_into_a_header() -> None:
    assert len(read_again(record_of(PLACE, b"", (), TIME), "x" * 1_000_000, None).reason) == 1_000


@pytest.mark.parametrize("content", [value for value in HOSTILE if value != b"9" * 9])
def test_an_invalid_count_is_treated_as_missing(content: bytes) -> None:
    assert record_of(PLACE, b"", ((DELIVERY_COUNT, content),), TIME).delivery_count == 1


@pytest.mark.parametrize("content", [value for value in HOSTILE if value not in {b"9" * 9, b"9" * 14}])
def test_an_invalid_time_is_treated_as_missing(content: bytes) -> None:
    assert record_of(PLACE, b"", ((ENQUEUED_AT, content),), TIME).enqueued_at_ms == TIME


@pytest.mark.parametrize(
    "content", [*HOSTILE, b"1", b"9999999999-1", b"1-" + b"9" * 19, b"-1-2", b"1--2", b"d-", b"d--1"]
)
def test_an_invalid_origin_is_treated_as_missing(content: bytes) -> None:
    assert record_of(PLACE, b"", ((ORIGIN_ID, content),), TIME).origin_id == PLACE


@given(header_lists)
def test_no_header_prevents_a_start(headers: Headers) -> None:
    record = record_of(PLACE, b"payload", headers, TIME)
    start = Marker(
        type=MarkerType.START,
        message_id=record.message_id,
        value=record.payload,
        headers=record.headers,
        delivery_count=record.delivery_count,
        origin_id=record.origin_id,
        enqueued_at_ms=record.enqueued_at_ms,
        max_deliveries=record.max_deliveries,
        ttl_ms=record.ttl_ms,
        first_started_ms=record.first_started_ms,
    )
    assert decode(encode(start)) == start


@given(header_lists)
def test_no_header_breaks_an_applications_receive(headers: Headers) -> None:
    record = record_of(PLACE, b"payload", headers, TIME)
    message = Message(
        queue=b"q",
        payload=record.payload,
        headers=record.headers,
        message_id=record.message_id,
        origin_id=record.origin_id,
        delivery_count=record.delivery_count,
        enqueued_at_ms=record.enqueued_at_ms,
        progress=cast("Progress", None),
    )
    assert message.enqueued_at.year >= 1970
    assert message.delivery_count >= 1
    assert "payload" not in repr(message)


@given(header_lists)
def test_a_dead_letter_of_any_record_can_be_replayed(headers: Headers) -> None:
    record = record_of(PLACE, b"payload", headers, TIME)
    letter = read_again(record, "why", None)
    assert replace(letter.record, message_id=PLACE) == record


@given(header_lists, st.binary(max_size=300), st.integers(1, 200))
def test_a_letter_in_parts_is_read_as_the_whole_message(headers: Headers, payload: bytes, part_bytes: int) -> None:
    record = record_of(PLACE, payload, headers, TIME)
    letter = read_again(record, "why", part_bytes)
    assert replace(letter.record, message_id=PLACE) == record
    assert (letter.reason, letter.incomplete, len(letter.parts) > 0) == ("why", None, True)


def test_a_letter_without_one_of_its_parts_says_so() -> None:
    letter = read_again(record_of(PLACE, b"payload" * 10, (), TIME), "why", 10, without=2)
    assert letter.incomplete is not None
    assert letter.incomplete.startswith("1 of its ")


def test_a_huge_message_is_cut_and_says_so() -> None:
    record = record_of(PLACE, b"ab" * 10_000_000, (("h", b"v"),), TIME)
    letter = read_again(record, "why", 500_000)
    assert letter.record.payload == record.payload[:MOST_KEPT]
    assert letter.incomplete == f"its content of {record.size:,} bytes was cut when the letter was written"
    assert read_again(record, "why", 0).record.payload == b""


def test_each_refusal_makes_parts_smaller_until_nothing_is_left() -> None:
    tried: list[int | None] = [None]
    while (smaller := next_part_bytes(tried[-1])) is not None:
        tried.append(smaller)
    assert tried == [None, 500_000, 100_000, 10_000, 0]


def read_again(record: Record, reason: str, part_bytes: int | None, *, without: int | None = None) -> DeadLetter:
    """Return the letter of a message, as it is read; `without` is the number of a part that is lost."""
    written = dead_records("dead", b"a/b", record, reason, part_bytes=part_bytes, partition_of=lambda _: 4)
    assert {place for _, _, _, place, _, _ in written} == {-1 if part_bytes is None else 4}
    *parts, (_, payload, key, _, _, headers) = written
    assert all(is_part(each[2] or b"") for each in parts)
    letter = dead_letter_of(MessageId(0, 9), key or b"", payload or b"", tuple(headers), TIME)
    assert letter is not None
    found = {each[2] or b"": each[1] or b"" for number, each in enumerate(parts) if number != without}
    return assembled(letter, found)


def test_a_header_name_that_is_not_utf8_can_be_sent() -> None:
    record = record_of(PLACE, b"", ((b"\xff-name".decode(errors="surrogateescape"), b"v"),), TIME)
    for name, _ in headers_of(record):
        name.encode()
    assert (r"\xff-name", b"v") in headers_of(record)


def test_a_header_name_with_nul_can_be_sent() -> None:
    record = record_of(PLACE, b"", (("a\0b", b"v"),), TIME)
    assert (r"a\x00b", b"v") in headers_of(record)


@pytest.mark.parametrize("given", [-1, -(2**62), 2**62])
def test_a_time_that_no_calendar_has_is_replaced(given: int) -> None:
    at = record_of(PLACE, b"", (), given).enqueued_at_ms
    assert datetime.fromtimestamp(at / 1000, UTC).year in {1970, 9999}
