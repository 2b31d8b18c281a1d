"""Batches of outbox rows, and the plan for each row: record, filtered or dead."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from thresher.delivery.batch import rows_of, transformed
from thresher.delivery.fate import FILTERED, Dead, Kind, dead
from thresher.delivery.row import ColumnRows, Record, Row
from thresher.delivery.stored_rows import SCHEMA, FewRows, batch_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROS = int(NOON.timestamp()) * 1_000_000


def stored(id_: int = 1, **fields: Any) -> tuple[Any, ...]:
    row: dict[str, Any] = {
        "id": id_, "create_time": NOON, "topic": "t", "key": b"k", "value": b"v", "header_keys": [],
        "header_values": [], "partition": None, "timestamp": None,
    }  # fmt: skip
    return tuple({**row, **fields}.values())


def row(**fields: Any) -> Row:
    (only,) = rows_of(batch_of([stored(**fields)]))
    return only


def plan(**fields: Any) -> Any:
    return row(**fields).plan


def test_a_row_becomes_a_record() -> None:
    assert row() == Row(1, MICROS, "t", b"k", Record("t", b"v", b"k", -1, 0, None))


def test_no_rows_are_an_empty_batch() -> None:
    assert batch_of([]).schema == SCHEMA
    assert len(rows_of(batch_of([]))) == 0


def test_rows_keep_their_order() -> None:
    assert [each.id for each in rows_of(batch_of([stored(id_) for id_ in (3, 1, 2)]))] == [3, 1, 2]


def test_a_null_key_and_a_null_value_stay_null() -> None:
    found = row(key=None, value=None)
    assert found.key is None
    assert found.stream is None
    assert found.plan == Record("t", None, None, -1, 0, None)


def test_an_empty_key_is_not_a_null_one() -> None:
    assert row(key=b"", value=b"").plan == Record("t", b"", b"", -1, 0, None)
    assert row(key=b"").stream == ("t", b"")


def test_a_partition_and_a_timestamp_are_passed_on() -> None:
    assert plan(partition=0)[3] == 0
    assert plan(partition=7, timestamp=NOON)[3:5] == (7, MICROS // 1000)


def test_repeated_headers_keep_their_order_and_null_values() -> None:
    assert plan(header_keys=["a", "b", "a"], header_values=[b"1", None, b"2"]).headers == [
        ("a", b"1"), ("b", None), ("a", b"2"),
    ]  # fmt: skip


def test_an_empty_header_name_is_a_name() -> None:
    assert plan(header_keys=[""], header_values=[b"1"]).headers == [("", b"1")]


@pytest.mark.parametrize("fields", [{"header_keys": None, "header_values": None}, {"header_keys": None}])
def test_headers_that_are_null_are_none(fields: dict[str, Any]) -> None:
    assert plan(**fields).headers is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"header_keys": ["a"], "header_values": []}, "unequal"),
        ({"header_keys": [], "header_values": [b"1"]}, "unequal"),
        ({"header_keys": ["a", "b"], "header_values": [b"1"]}, "unequal"),
        ({"header_keys": ["a"], "header_values": None}, "unequal"),
        ({"header_keys": None, "header_values": [b"1"]}, "unequal"),
        ({"header_keys": ["a", None], "header_values": [b"1", b"2"]}, "no name"),
        ({"topic": ""}, "topic"),
        ({"topic": "."}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "ü"}, "topic"),
        ({"topic": "x" * 250}, "topic"),
        ({"partition": -1}, "partition"),
        ({"partition": -(2**31)}, "partition"),
        ({"timestamp": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)}, "1970"),
    ],
)
def test_a_malformed_row_is_dead_and_says_why(fields: dict[str, Any], why: str) -> None:
    found = plan(**fields)
    assert isinstance(found, Dead)
    assert found.kind is Kind.MALFORMED
    assert why in found.reason


def test_a_timestamp_after_9999_is_malformed() -> None:
    late = batch_of([stored()]).set_column(
        SCHEMA.get_field_index("timestamp"),
        SCHEMA.field("timestamp"),
        pa.array([253_402_300_800_000_000], pa.int64()).cast(SCHEMA.field("timestamp").type),
    )
    assert isinstance(rows_of(late)[0].plan, Dead)


def test_the_latest_time_that_python_knows_is_fine() -> None:
    assert plan(timestamp=datetime.max.replace(tzinfo=UTC)).timestamp == 253_402_300_799_999


def test_timestamp_zero_differs_from_no_timestamp() -> None:
    assert plan(timestamp=datetime(1970, 1, 1, tzinfo=UTC)) != plan(timestamp=None)


def test_one_malformed_row_leaves_its_neighbours_as_they_are() -> None:
    plans = [each.plan for each in rows_of(batch_of([stored(1), stored(2, topic="."), stored(3)]))]
    assert [type(each) for each in plans] == [Record, Dead, Record]


def test_rows_left_out_are_filtered_failed_rows_are_dead() -> None:
    batch = batch_of([stored(id_) for id_ in (1, 2, 3)])
    failed = dead(Kind.TRANSFORM, "it failed")
    rows = transformed(batch, batch.slice(1, 1), {3: failed})
    assert [each.id for each in rows] == [1, 2, 3]
    assert [each.plan for each in rows] == [FILTERED, Record("t", b"v", b"k", -1, 0, None), failed]


def test_a_transformed_row_is_sent_the_stored_row_stays() -> None:
    batch = batch_of([stored(1), stored(2)])
    later = NOON.replace(year=2027)
    result = batch_of([stored(2, topic="u", key=b"n", value=None), stored(1, create_time=later)])
    rows = transformed(batch, result, {})
    assert rows[0] == Row(1, MICROS, "t", b"k", Record("t", b"v", b"k", -1, 0, None))
    assert rows[1] == Row(2, MICROS, "t", b"k", Record("u", None, b"n", -1, 0, None))


def test_a_transform_can_make_a_row_malformed() -> None:
    batch = batch_of([stored(1)])
    (found,) = transformed(batch, batch_of([stored(1, topic=None)]), {})
    assert isinstance(found.plan, Dead)
    assert found.topic == "t"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {2: "a bad name"},
        {5: ("a",), 6: ()},
        {5: (None,), 6: (b"1",)},
        {7: -4},
        {7: 2},
        {8: datetime(2026, 1, 1, tzinfo=UTC)},
        {9: "headers"},
    ],
    ids=["plain", "topic", "unequal headers", "nameless header", "bad partition", "partition", "timestamp", "flaw"],
)
def test_rows_are_the_same_as_tuples_and_as_columns(odd: dict[int, Any]) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    found: list[list[Any]] = [
        [n, moment, "orders", b"k%d" % n, b"v", ("a", "b"), (b"1", None), None, None, None] for n in range(40)
    ]
    found[3][5:7] = [(), ()]
    for place, value in odd.items():
        found[7][place] = value
    tuples = [tuple(row) for row in found]
    few = rows_of(FewRows(tuples))
    assert list(few) == list(rows_of(batch_of(tuples)))
    assert isinstance(few, ColumnRows) == (odd in ({}, {7: 2}))
