"""Markers on the wire in both directions, compared with protoc and kafka-mq-go's definition."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.queue.wire.marker import Headers, Marker, MarkerMalformed, MarkerType, MessageId, decode, encode

ORIGINAL = Path(__file__).parents[1] / "queue" / "original.proto"
START, END, KEEPALIVE = MarkerType.START, MarkerType.END, MarkerType.KEEPALIVE
ID = MessageId(3, 14)
FULL = Marker(
    type=START,
    message_id=ID,
    redeliver_after_ms=60_000,
    key=b"queue",
    value=b"payload",
    headers=(("name", b"value"), ("null", None), ("empty", b""), ("name", b"again"), ("bad\udcff", b"\xff")),
    delivery_count=4,
    origin_id=MessageId(0, 0),
    enqueued_at_ms=1_700_000_000_000,
)


def protoc(given: bytes, *arguments: str, folder: Path | None = None) -> bytes:
    ended = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder or ORIGINAL.parent}", *arguments],
        input=given,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


def written_by_the_original(text: str) -> bytes:
    """Return the bytes that kafka-mq-go writes for a marker in text format."""
    return protoc(text.encode(), "--encode=original.Marker", ORIGINAL.name)


def read_by_the_original(content: bytes) -> list[str]:
    """Return a marker in text format, as kafka-mq-go reads it. An unknown field has a number instead of a name."""
    return [line.strip() for line in protoc(content, "--decode=original.Marker", ORIGINAL.name).decode().splitlines()]


def fields(content: bytes) -> list[str]:
    """Return the numbers of the fields that are on the wire, in their order."""
    lines = protoc(content, "--decode_raw").decode().splitlines()
    return [line.split(":")[0].split(" ")[0] for line in lines if line[0] not in " }"]


# Markers that kafka-mq-go writes


def test_a_start_of_the_original_is_read() -> None:
    content = written_by_the_original(
        "version: V1 type: START message_id { partition: 3 offset: 14 } redeliver_after_ms: 60000 "
        'key: "q" value: "\\377p"'
    )
    assert decode(content) == Marker(type=START, message_id=ID, redeliver_after_ms=60_000, key=b"q", value=b"\xffp")


def test_a_keep_alive_of_the_original_is_read() -> None:
    content = written_by_the_original("type: KEEPALIVE message_id { partition: 3 offset: 14 } redeliver_after_ms: 5")
    assert decode(content) == Marker(type=KEEPALIVE, message_id=ID, redeliver_after_ms=5)


def test_an_end_of_the_original_is_read() -> None:
    content = written_by_the_original("type: END message_id { partition: 3 offset: 14 }")
    assert decode(content) == Marker(type=END, message_id=ID)


def test_missing_fields_get_their_defaults() -> None:
    content = written_by_the_original("message_id { }")
    assert content == b"\x1a\x00"
    assert decode(content) == Marker(type=START, message_id=MessageId(0, 0))
    assert decode(content).delivery_count == 1, "kafka-mq-go counts no deliveries"


@pytest.mark.parametrize("partition", [0, 2**31 - 1])
@pytest.mark.parametrize("offset", [0, 2**62, 2**63 - 1])
@pytest.mark.parametrize("after", [0, 2**63, 2**64 - 1])
def test_large_numbers_of_ours_are_the_originals(partition: int, offset: int, after: int) -> None:
    marker = Marker(type=KEEPALIVE, message_id=MessageId(partition, offset), redeliver_after_ms=after)
    text = f"type: KEEPALIVE message_id {{ partition: {partition} offset: {offset} }} redeliver_after_ms: {after}"
    assert encode(marker) == written_by_the_original(text)
    assert decode(encode(marker)) == marker


# Markers that kafka-mq-go reads


def test_the_original_reads_our_start_and_skips_our_fields() -> None:
    lines = read_by_the_original(encode(FULL))
    assert lines[:7] == [
        "message_id {",
        "partition: 3",
        "offset: 14",
        "}",
        "redeliver_after_ms: 60000",
        'key: "queue"',
        'value: "payload"',
    ]
    unknown = {line.split(" ")[0].rstrip(":") for line in lines[7:]}
    assert {"16", "17", "18", "19"} <= unknown


def test_the_original_reads_our_end() -> None:
    assert read_by_the_original(encode(Marker(type=END, message_id=ID))) == [
        "type: END",
        "message_id {",
        "partition: 3",
        "offset: 14",
        "}",
    ]


def test_kafka_mq_go_redelivers_a_rejected_message_at_once() -> None:
    lines = read_by_the_original(encode(Marker(type=KEEPALIVE, message_id=ID, reject_reason="no")))
    assert lines[0] == "type: KEEPALIVE"
    assert not any(line.startswith("redeliver_after_ms") for line in lines), "a missing field means 0"
    assert '20: "no"' in lines


# The fields on the wire


def test_an_end_has_only_its_type_and_its_message() -> None:
    # The version is the default 0, which proto3 leaves out: a missing version means V1.
    content = encode(
        Marker(type=END, message_id=ID, redeliver_after_ms=0, key=b"q", value=b"p", headers=(("h", b"v"),))
    )
    assert fields(content) == ["2", "3"]
    assert decode(content) == Marker(type=END, message_id=ID)


def test_a_keep_alive_has_no_key_and_no_value() -> None:
    content = encode(
        Marker(type=KEEPALIVE, message_id=ID, redeliver_after_ms=7, key=b"q", value=b"p", headers=(("h", b"v"),))
    )
    assert fields(content) == ["2", "3", "4"]


def test_a_start_has_every_field() -> None:
    assert fields(encode(FULL)) == ["3", "4", "5", "6", "16", "16", "16", "16", "16", "17", "18", "19"]


def test_our_fields_have_numbers_from_sixteen_up() -> None:
    reject = encode(Marker(type=KEEPALIVE, message_id=ID, reject_reason="", undelivered=True))
    assert fields(reject) == ["2", "3", "20", "21"]


# Encoding and decoding


@pytest.mark.parametrize(
    "marker",
    [
        FULL,
        Marker(type=START, message_id=MessageId(0, 0)),
        Marker(type=KEEPALIVE, message_id=ID, redeliver_after_ms=2**63),
        Marker(type=KEEPALIVE, message_id=ID, reject_reason="bad, \N{SNOWMAN}"),
        Marker(type=KEEPALIVE, message_id=ID, reject_reason=""),
        Marker(type=KEEPALIVE, message_id=ID, undelivered=True),
        Marker(type=END, message_id=MessageId(0, 2**62)),
    ],
    ids=lambda marker: f"{marker.type.name}-{marker.message_id}",
)
def test_a_marker_reads_back_the_same(marker: Marker) -> None:
    assert decode(encode(marker)) == marker


names = st.binary().map(lambda name: name.decode(errors="surrogateescape"))
headers = st.lists(st.tuples(names, st.none() | st.binary()), max_size=4).map(tuple)
ids = st.builds(MessageId, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))


@given(ids, st.binary(), st.binary(), headers, st.integers(1, 2**32 - 1), st.none() | ids)
def test_any_start_reads_back_the_same(
    message_id: MessageId, key: bytes, value: bytes, told: Headers, count: int, origin: MessageId | None
) -> None:
    marker = Marker(
        type=START,
        message_id=message_id,
        key=key,
        value=value,
        headers=told,
        delivery_count=count,
        origin_id=origin,
    )
    assert decode(encode(marker)) == marker


def test_fields_that_we_do_not_know_are_skipped() -> None:
    # Field 99 as number, text and message; field 7, which kafka-mq-go may add.
    unknown = b"\x98\x06\x2a" + b"\x9a\x06\x02hi" + b"\x9b\x06\x08\x01\x9c\x06" + b"\x38\x05"
    for marker in (FULL, Marker(type=END, message_id=ID)):
        assert decode(unknown + encode(marker)) == marker
        assert decode(encode(marker) + unknown) == marker


def test_a_reason_that_is_not_utf8_is_written() -> None:
    content = encode(Marker(type=KEEPALIVE, message_id=ID, reject_reason="half \ud800"))
    assert decode(content).reject_reason == "half ?"


# Records that are no markers


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"a text, and no marker",
        b'{"type": "START"}',
        encode(FULL)[:-1],
        # An unknown type; a marker without a message id.
        b"\x10\x07" + encode(Marker(type=START, message_id=ID)),
        b"\x10\x01",
        # A reason that is not UTF-8.
        encode(Marker(type=KEEPALIVE, message_id=ID)) + b"\xa2\x01\x01\xff",
    ],
)
def test_garbage_is_malformed(content: bytes) -> None:
    with pytest.raises(MarkerMalformed):
        decode(content)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_marker_or_malformed(content: bytes) -> None:
    try:
        marker = decode(content)
    except MarkerMalformed:
        return
    assert decode(encode(marker)).message_id == marker.message_id


# The definition


def test_the_compiled_definition_is_up_to_date(tmp_path: Path) -> None:
    # Imported here, because the tests of mutants run without this folder.
    from maintenance.marker_definition import WIRE, compiled_into

    compiled_into(tmp_path / "marker.binpb")
    assert (tmp_path / "marker.binpb").read_bytes() == (WIRE / "marker.binpb").read_bytes(), (
        "run python -m maintenance.marker_definition"
    )
