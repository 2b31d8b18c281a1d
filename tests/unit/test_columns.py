"""Values that are read from Arrow buffers equal those of `to_pylist`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery import columns
from thresher.delivery.batch import column_rows, rows_of
from thresher.delivery.row import ColumnRows, Record, Row
from thresher.delivery.stored_rows import FewRows, batch_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def parts(values: Sequence[Any], kind: pa.DataType) -> list[pa.Array]:
    """Return the whole column, the column without its first and last value, and an empty slice."""
    whole = pa.array(values, kind)
    return [whole, whole[1:-1], whole[:0]]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers(values: list[int]) -> None:
    for column in parts(values, pa.int64()):
        assert columns.integers(column).tolist() == column.to_pylist()


@given(st.lists(st.sampled_from(["", "a", "grün"])))
def test_texts(values: list[str]) -> None:
    for column in parts(values, pa.string()):
        assert columns.texts(column) == column.to_pylist()


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=3))
    | st.integers(1, 3).flatmap(lambda each: st.lists(st.lists(st.integers(0, 9), min_size=each, max_size=each)))
)
def test_lists(values: list[list[int]]) -> None:
    for column in parts(values, pa.list_(pa.int64())):
        assert columns.lists(column, column.flatten().to_pylist()) == column.to_pylist()


names = st.sampled_from(["a", "b", None])
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=3)), max_size=3)
rows = st.tuples(
    st.sampled_from(["t", "u", "bad name", None]),
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=3),
    headers,
    st.sampled_from([None, None, 0, 3, -1]),
    st.sampled_from([None, None, NOON]),
)


@given(st.lists(rows, max_size=40), st.integers(0, 3))
def test_rows_are_the_same_by_columns_and_one_by_one(given_rows: list[Any], start: int) -> None:
    stored = [
        (number, NOON, topic, key, value, [name for name, _ in pairs], [each for _, each in pairs], partition, moment)
        for number, (topic, key, value, pairs, partition, moment) in enumerate(given_rows)
    ]
    batch = batch_of(stored).slice(start)
    one_by_one = [each for place in range(batch.num_rows) for each in rows_of(batch.slice(place, 1))]
    assert list(rows_of(batch)) == one_by_one
    if stored[start:]:
        assert list(rows_of(FewRows(stored[start:]))) == one_by_one
    found = column_rows(batch)
    if found is not None:
        assert list(found) == one_by_one
        assert found.topics == {row.topic for row in one_by_one}
        assert found.asks_for_partitions == any(
            row.plan.partition >= 0 for row in one_by_one if isinstance(row.plan, Record)
        )


def test_unequal_numbers_of_header_names_and_values_are_unsendable() -> None:
    def stored(names: list[str], values: list[bytes]) -> tuple[Any, ...]:
        return (1, NOON, "t", b"k", b"v", names, values, None, None)

    # Equal totals, and unequal numbers in the rows.
    assert column_rows(batch_of([stored(["a", "b"], [b""]), stored(["a"], [b"", b""])])) is None
    assert column_rows(batch_of([stored(["a"], [])])) is None
    assert column_rows(batch_of([stored(["a"], [b""])])) is not None


@pytest.fixture
def bundle() -> ColumnRows:
    topics = ["t", "u", "t"]
    found = column_rows(batch_of([(n, NOON, t, b"k", b"v", [], [], None, None) for n, t in enumerate(topics)]))
    assert found is not None
    return found


def test_a_slice_of_rows_keeps_their_values(bundle: ColumnRows) -> None:
    part = bundle[1:]
    assert isinstance(part, ColumnRows)
    assert list(part) == list(bundle)[1:]
    assert bundle[:1].topics == {"t"}


def test_a_single_row(bundle: ColumnRows) -> None:
    micros = int(NOON.timestamp()) * 1_000_000
    assert bundle[1] == Row(1, micros, "u", b"k", Record("u", b"v", b"k", -1, 0, None))
    assert bundle[-1].id == 2
