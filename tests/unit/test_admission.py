from datetime import UTC, datetime
from typing import Any

import pytest

from thresher.core.errors import InvalidInput
from thresher.outbox import InvalidMessage, Limits, Message, Shape
from thresher.outbox.admission import Admission, Row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def admit(shape: Shape = Shape.THRESHER, limits: Limits | None = None, **fields: Any) -> Row:
    return Admission(shape, limits or Limits()).row(Message(**{"topic": "t", **fields}))


def refused(shape: Shape = Shape.THRESHER, limits: Limits | None = None, **fields: Any) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        admit(shape, limits, **fields)
    return caught.value


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "x" * 249, "...", "0"])
def test_topics_that_kafka_allows(topic: str) -> None:
    assert admit(topic=topic)[0] == topic


@pytest.mark.parametrize(
    "topic",
    [
        "",
        ".",
        "..",
        "x" * 250,
        "a b",
        "a/b",
        "ü",
        "a\n",
        "a\0",
        None,
        7,
        b"t",
        "__consumer_offsets",
        "__transaction_state",
    ],
)
def test_topics_that_kafka_refuses(topic: Any) -> None:
    assert refused(topic=topic).field == "topic"


def test_text_becomes_utf8_and_bytes_stay() -> None:
    row = admit(key="schlüssel", value=b"\x00\xff", headers=[("h", "ü")])
    assert row == ("t", "schlüssel".encode(), b"\x00\xff", ("h",), ("ü".encode(),), None, None)


def test_repeated_headers_keep_their_order_and_null_values() -> None:
    row = admit(headers=[("a", b"1"), ("b", None), ("a", b"2")])
    assert row[3:5] == (("a", "b", "a"), (b"1", None, b"2"))


def test_headers_may_be_a_mapping() -> None:
    assert admit(headers={"a": b"1", "b": "2"})[3:5] == (("a", "b"), (b"1", b"2"))


def test_our_shape_accepts_null_keys_and_tombstones() -> None:
    assert admit(key=None, value=None)[1:3] == (None, None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": 1}, "key"),
        ({"value": {"a": 1}}, "value"),
        ({"value": bytearray(b"x")}, "value"),
        ({"value": "\udc80"}, "value"),
        ({"headers": [("a",)]}, "headers"),
        ({"headers": ["ab"]}, "headers"),
        ({"headers": [(b"a", b"1")]}, "header name"),
        ({"headers": [("a\0", b"1")]}, "header name"),
        ({"headers": [("\udc80", b"1")]}, "header name"),
        ({"headers": [("a", 1)]}, "header 'a'"),
        ({"partition": -1}, "partition"),
        ({"partition": 2**31}, "partition"),
        ({"partition": True}, "partition"),
        ({"partition": 1.0}, "partition"),
        ({"timestamp": datetime(2026, 1, 1)}, "timestamp"),  # noqa: DTZ001
        ({"timestamp": datetime(1969, 12, 31, tzinfo=UTC)}, "timestamp"),
        ({"timestamp": 1_700_000_000}, "timestamp"),
    ],
)
def test_an_unsendable_message_is_refused_by_field(fields: dict[str, Any], field: str) -> None:
    assert refused(**fields).field == field


def test_a_refusal_names_field_value_and_rule() -> None:
    error = refused(topic="no spaces please")
    assert str(error).startswith("message refused: topic = 'no spaces please': Kafka allows 1 to 249")


def test_a_refused_value_is_shown_shortened() -> None:
    assert len(str(refused(value=b"x" * 2_000_000))) < 300


def test_the_size_limit_counts_key_value_and_headers_exactly() -> None:
    limits = Limits(message_bytes=90)
    admit(limits=limits, key=b"12", value=b"345", headers=[("ü", b"678")])
    error = refused(limits=limits, key=b"12", value=b"3456", headers=[("ü", b"678")])
    assert "91 bytes, 90 are allowed" in error.rule


@pytest.mark.parametrize("shape", [Shape.THRESHER, Shape.GOHARVEST])
def test_empty_headers_have_a_size_too(shape: Shape) -> None:
    limits = Limits(message_bytes=50_000)
    assert "message has" in refused(shape, limits=limits, key="k", headers=[("", "")] * 9_000).rule


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("headers", [None, 0, False, "", "ab", 7])
def test_headers_that_are_no_pairs_are_refused(shape: Shape, headers: Any) -> None:
    assert refused(shape, key="k", headers=headers).field == "headers"


def test_the_largest_part_is_blamed() -> None:
    error = refused(limits=Limits(message_bytes=1000), value=b"tiny", headers=[("h", b"x" * 2000)])
    assert error.field == "header 'h'"


def test_a_timestamp_is_kept_as_the_same_moment_in_utc() -> None:
    from datetime import timedelta, timezone

    far = timezone(timedelta(hours=20))
    assert admit(timestamp=NOON.astimezone(far))[6] == NOON
    assert admit(timestamp=NOON.astimezone(far))[6].tzinfo is UTC
    assert "9999" in refused(timestamp=datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))).rule


def test_an_oversized_tombstone_blames_the_key() -> None:
    assert refused(limits=Limits(message_bytes=73), key=b"1234").field == "key"


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_must_be_a_positive_whole_number(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="message_bytes"):
        Limits(message_bytes=limit)


def test_an_object_that_is_no_message_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="a Message is needed, not dict"):
        Admission(Shape.THRESHER, Limits()).row({"topic": "t"})  # type: ignore[arg-type]


def test_the_memory_of_topics_is_bounded() -> None:
    admission = Admission(Shape.THRESHER, Limits())
    for number in range(10_000):
        admission.row(Message(topic=f"t{number}"))
    assert len(admission._topics) <= 4096


def test_the_memory_of_header_names_may_be_cleared_concurrently() -> None:
    class Forgetful(dict[str, int]):
        def __setitem__(self, name: str, size: int) -> None:
            pass  # As if another thread had cleared it at once.

    for shape in (Shape.THRESHER, Shape.GOHARVEST):
        admission = Admission(shape, Limits())
        admission._name_bytes = Forgetful()
        assert admission.row(Message(topic="t", key="k", headers=[("h", "x")]))[3] == ("h",)


def test_partition_and_timestamp_reach_the_row() -> None:
    assert admit(partition=0, timestamp=NOON)[5:] == (0, NOON)


class TestGoharvestShape:
    def test_bytes_become_text(self) -> None:
        row = admit(Shape.GOHARVEST, key="ü".encode(), value=b"v", headers=[("h", b"1")])
        assert row == ("t", "ü", "v", ("h",), ("1",))

    def test_goharvests_table_accepts_tombstones(self) -> None:
        assert admit(Shape.GOHARVEST, key="k")[2] is None

    @pytest.mark.parametrize(
        ("fields", "field", "reason"),
        [
            ({"key": None}, "key", "NULL key"),
            ({"key": b"\xff"}, "key", "not UTF-8"),
            ({"value": b"\xff"}, "value", "not UTF-8"),
            ({"value": "a\0b"}, "value", "NUL"),
            ({"value": 7}, "value", "str or bytes"),
            ({"partition": 0}, "partition", "no column"),
            ({"timestamp": NOON}, "timestamp", "no column"),
            ({"partition_key": "p"}, "partition_key", "no column"),
            ({"headers": [("h", None)]}, "header 'h'", "NULL header"),
            ({"headers": [("h", b"\xff")]}, "header 'h'", "not UTF-8"),
            ({"key": "k" * 101}, "key", "101 characters"),
            ({"value": "v" * 10_001}, "value", "10001 characters"),
        ],
    )
    def test_a_message_goharvests_table_cannot_hold_is_refused(
        self, fields: dict[str, Any], field: str, reason: str
    ) -> None:
        error = refused(Shape.GOHARVEST, **{"key": "k", **fields})
        assert error.field == field
        assert reason in error.rule

    def test_the_limits_are_characters_not_bytes(self) -> None:
        admit(Shape.GOHARVEST, key="ü" * 100, value="ü" * 10_000)

    def test_wider_columns_are_declared_by_limits(self) -> None:
        admit(Shape.GOHARVEST, Limits(key_characters=200), key="k" * 200)


def test_our_own_table_refuses_partition_keys() -> None:
    error = refused(key="k", partition_key="p")
    assert (error.field, error.value) == ("partition_key", "'p'")
    assert "no column" in error.rule


class TestDeimosShape:
    def test_bytes_stay_bytes_and_partition_keys_become_text(self) -> None:
        row = admit(Shape.DEIMOS, key="ü", value=b"\xff", partition_key="ü".encode())
        assert row == ("t", "ü".encode(), b"\xff", (), (), "ü")

    def test_a_message_may_have_neither_key_nor_value(self) -> None:
        assert admit(Shape.DEIMOS) == ("t", None, None, (), (), None)

    def test_an_empty_partition_key_is_kept(self) -> None:
        assert admit(Shape.DEIMOS, partition_key="")[5] == ""

    @pytest.mark.parametrize(
        ("fields", "field", "reason"),
        [
            ({"headers": [("h", "x")]}, "headers", "no column"),
            ({"partition": 0}, "partition", "give a partition_key"),
            ({"timestamp": NOON}, "timestamp", "no column"),
            ({"partition_key": b"\xff"}, "partition_key", "not UTF-8"),
            ({"partition_key": "a\0b"}, "partition_key", "NUL"),
            ({"partition_key": 7}, "partition_key", "str or bytes"),
            ({"key": 7}, "key", "bytes, str or None"),
            ({"value": 7}, "value", "bytes, str or None"),
            ({"topic": "not good"}, "topic", "Kafka allows"),
            ({"value": b"x" * 1_000_000}, "value", "are allowed"),
            ({"value": b"x" * 300_000, "partition_key": "ü" * 350_000}, "partition_key", "are allowed"),
        ],
    )
    def test_a_message_deimos_table_cannot_hold_is_refused(
        self, fields: dict[str, Any], field: str, reason: str
    ) -> None:
        error = refused(Shape.DEIMOS, **fields)
        assert error.field == field
        assert reason in error.rule
