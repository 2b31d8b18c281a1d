"""Rows with a partition key: their order and their partition."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from thresher.delivery.batch import rows_of, transformed
from thresher.delivery.fate import Dead
from thresher.delivery.partition_keys import with_partitions
from thresher.delivery.row import BY_ROW_KEY, ColumnRows, Record, Row, RowList
from thresher.delivery.stored_rows import FewRows, batch_of, flawless
from thresher.kafka.partitioners import crc32_partition
from thresher.relay.protocol.scoreboard import Scoreboard

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# Results of Ruby's Zlib.crc32.
CRC32 = {b"abc": 891_568_578, b"123456789": 3_421_780_262, b"": 0}


def stored(id_: int, partition_key: bytes | None, key: bytes | None = b"k", flaw: str | None = None) -> tuple[Any, ...]:
    return (id_, NOON, "t", key, b"v", [], [], None, None, flaw, partition_key)


def planned(row: Row) -> Record:
    assert isinstance(row.plan, Record)
    return row.plan


@pytest.mark.parametrize("few", [True, False])
def test_rows_are_ordered_by_partition_key_and_keep_their_key(few: bool) -> None:
    found = [stored(1, b"p"), stored(2, None), stored(3, b"", key=None)]
    rows = rows_of(FewRows(found) if few else batch_of(found))
    assert [row.stream for row in rows] == [("t", b"p"), ("t", b"k"), ("t", b"")]
    assert [planned(row).key for row in rows] == [b"k", b"k", None]
    assert [planned(row).partition for row in rows] == [BY_ROW_KEY, -1, BY_ROW_KEY]
    assert [row.sent_stream for row in rows] == [row.stream for row in rows]


def test_many_rows_without_partition_keys_stay_columns() -> None:
    found = [stored(number, None) for number in range(100)]
    assert isinstance(rows_of(batch_of(found)), ColumnRows)
    rows = rows_of(batch_of([*found, stored(100, b"p")]))
    assert [row.key for row in rows][-2:] == [b"k", b"p"]


@pytest.mark.parametrize("few", [True, False])
def test_a_flawed_row_stays_flawed_whatever_its_partition_key(few: bool) -> None:
    found = [stored(1, b"p", flaw="too-large")]
    (row,) = rows_of(FewRows(found) if few else batch_of(found))
    assert isinstance(row.plan, Dead)
    assert row.stream == ("t", b"p")


@pytest.mark.parametrize("key", CRC32)
def test_partitions_are_those_of_ruby_kafka(key: bytes) -> None:
    rows = rows_of(FewRows([stored(1, key)]))
    for partitions in (1, 3, 12):
        (row,) = with_partitions(rows, {"t": partitions})
        assert planned(row).partition == CRC32[key] % partitions


def test_only_rows_with_partition_keys_get_partitions() -> None:
    rows = rows_of(FewRows([stored(1, None), stored(2, b"p")]))
    placed = with_partitions(rows, {"t": 7})
    assert [planned(row).partition for row in placed] == [-1, crc32_partition(b"p", 7)]
    plain = rows_of(FewRows([stored(1, None)]))
    assert with_partitions(plain, {}) is plain


def moved(batch: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    for name, column in columns.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch


def test_a_transform_sees_no_partition_key_and_keeps_it() -> None:
    batch = batch_of([stored(1, b"p"), stored(2, None)])
    given = flawless(batch)
    assert "partition_key" not in given.schema.names
    result = moved(given, topic=pa.array(["other", "other"]), key=pa.array([b"x", b"y"]))
    rows = with_partitions(transformed(batch, result, {}), {"other": 5})
    assert [planned(row).partition for row in rows] == [crc32_partition(b"p", 5), -1]
    assert [planned(row).key for row in rows] == [b"x", b"y"]
    assert [row.stream for row in rows] == [("t", b"p"), ("t", b"k")]
    assert transformed(batch, result, {})[0].sent_stream == ("other", b"p")


def test_a_partition_that_a_transform_names_comes_first() -> None:
    batch = batch_of([stored(1, b"p")])
    (row,) = transformed(batch, moved(flawless(batch), partition=pa.array([2], pa.int32())), {})
    assert planned(row).partition == 2


def test_only_one_row_of_a_partition_key_is_in_flight() -> None:
    board = Scoreboard(10)
    rows = rows_of(FewRows([stored(1, b"p", b"a"), stored(2, b"p", b"b"), stored(3, b"q", b"a")]))
    board.add(rows)
    wave = board.wave()
    assert [row.id for row in wave] == [1, 3]
    board.purged(wave)
    assert [row.id for row in board.wave()] == [2]


def test_an_empty_batch_needs_no_partitions() -> None:
    assert len(with_partitions(RowList(), {})) == 0
