"""A model of captured rows that shares no code with the product: plain tuples, and each rule written out."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st


class Written(NamedTuple):
    """A record: its key, its value or None for a tombstone, its partition, offset and time."""

    key: int
    value: int | None
    partition: int
    offset: int
    time: int


# By key: value, partition, offset, time.
ModelRows = dict[int, tuple[int, int, int, int]]


def is_later(record: Written, partition: int, offset: int, time: int) -> bool:
    """Whether a record is later than the record from which a row was written."""
    if record.partition == partition:
        return record.offset > offset
    if record.time == time:
        return record.partition > partition
    return record.time > time


def take(rows: ModelRows, record: Written) -> None:
    """Apply one record: its row stays unchanged, is written, or is deleted."""
    time = record.time
    if record.key in rows:
        _, partition, offset, before = rows[record.key]
        if not is_later(record, partition, offset, before):
            return
        if partition == record.partition:
            time = max(time, before)
    if record.value is None:
        rows.pop(record.key, None)
    else:
        rows[record.key] = (record.value, record.partition, record.offset, time)


def take_batch(rows: ModelRows, records: Iterable[Written]) -> None:
    """Apply a batch: the last record of each key and partition, with the latest of their times; tombstones last."""
    last: dict[tuple[int, int], Written] = {}
    for record in records:
        before = last.get((record.key, record.partition))
        time = record.time if before is None else max(before.time, record.time)
        last[record.key, record.partition] = record._replace(time=time)
    for record in sorted(last.values(), key=lambda each: each.value is None):
        take(rows, record)


def logs(partitions: int, *, deletes: bool) -> st.SearchStrategy[list[Written]]:
    """Records of a few keys in a few partitions, with timestamps that repeat and go back."""
    one = st.tuples(
        st.integers(0, 2),
        st.booleans() if deletes else st.just(False),
        st.integers(0, partitions - 1),
        st.integers(0, 5),
    )

    def made(drawn: list[tuple[int, bool, int, int]]) -> list[Written]:
        return [
            Written(key, None if dead else offset, partition, offset, time)
            for offset, (key, dead, partition, time) in enumerate(drawn)
        ]

    return st.lists(one, max_size=40).map(made)


CUTS = st.lists(st.integers(0, 40), max_size=6)


def cut(records: list[Written], cuts: list[int]) -> list[list[Written]]:
    """Cut the records into batches."""
    edges = sorted({0, len(records), *(each % (len(records) + 1) for each in cuts)})
    return [records[begin:end] for begin, end in pairwise(edges)]
