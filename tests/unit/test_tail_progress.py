"""A tail's progress records: their content, their size, and when a note is due."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from thresher.delivery.effects import Control
from thresher.delivery.fate import Kind, dead
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.row import Record, Row, RowList
from thresher.relay.protocol import progress as relayed
from thresher.tail.buffer import Bounds, LogBuffer
from thresher.tail.chunk import Chunk
from thresher.tail.coverage import Coverage
from thresher.tail.log_span import LogSpan
from thresher.tail.position import Position
from thresher.tail.progress import TailBook, batch_rows, bounded, decode, encode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BAD = dead(Kind.TOO_LARGE, "x" * 400, 3)


class Clock:
    now = 0.0


def book(buffer: LogBuffer, clock: type[Clock] = Clock) -> TailBook:
    made = TailBook(buffer=buffer, outbox_id="o", term="t", timeline=lambda: 3, monotonic=lambda: clock.now)
    made.opened(Control(outbox_id="o", term="t", system_id="7/5", incarnation="2/17.5/5/0"))
    return made


def filled(count: int) -> LogBuffer:
    buffer = LogBuffer(Bounds())
    positions = [Position(10 * n, 10 * n - 5, 0) for n in range(1, count + 1)]
    rows: list[Any] = [(n, NOW, "a", b"k", b"v", (), (), None, None, None) for n in range(count)]
    buffer.add(Chunk(positions=positions, rows=rows, commit_times=[7] * count, ended=10 * count + 1, size=10 * count))
    return buffer


def row(number: int, plan: Any = None) -> Row:
    return Row(number, 5, "a", b"k", plan or Record("a", b"v", b"k", -1, 0, None))


def test_an_encoded_record_decodes_to_the_same() -> None:
    writes = book(filled(4))
    span = LogSpan(published="1/2/3/16384", first_xid=2**33)
    writes.span = lambda: span
    made = writes.record(9, RowList([row(2), row(3, BAD)]), 2)
    read = decode(encode(made))
    assert (read.origin, read.number, read.failures, read.coverage) == (made.origin, 9, 2, made.coverage)
    assert read.origin.timeline == 3
    assert read.span == span
    assert read.coverage.position == Position(30, 25, 0)
    assert read.coverage.waiting == {Position(10, 5, 0)}
    assert read.coverage.dead == {Position(30, 25, 0): BAD}
    assert [each.row[0] for each in made.dead.values()] == [2]


def test_relay_and_tail_refuse_each_others_records() -> None:
    with pytest.raises(ForeignProgress):
        relayed.decode(encode(book(filled(1)).record(1, RowList([row(1)]), 0)))
    origin = relayed.Origin(outbox_id="o", system_id="", incarnation="", term="", shard=0)
    with pytest.raises(ForeignProgress):
        decode(relayed.encode(relayed.Progress(origin=origin, number=1)))


@pytest.mark.parametrize("most_bytes", [14_336, 100_000, 900_000])
def test_all_waiting_changes_fit_into_a_record(most_bytes: int) -> None:
    # Each position takes three bytes here.
    waiting = bounded(Bounds(), most_bytes).waiting_bytes // 3
    rows = batch_rows(15_000, most_bytes)
    buffer = filled(waiting + rows + 500)
    made = TailBook(buffer=buffer, outbox_id="o", term="t", timeline=lambda: 3, most_bytes=most_bytes)
    made.opened(Control(outbox_id="o", term="t", system_id="7/5", incarnation="2/17.5/5/0"))
    poisoned = RowList([row(waiting + rows + n, BAD) for n in range(1, 501)])
    fit = made.fitting(poisoned)
    assert 1 <= fit <= 500
    assert len(encode(made.record(1, poisoned[:fit], 0))) <= most_bytes


def test_a_record_of_the_version_before_is_read() -> None:
    made = book(filled(4)).record(9, RowList([row(2)]), 2)
    with pa.ipc.open_stream(pa.BufferReader(encode(made))) as reader:
        metadata = {**(reader.schema.metadata or {}), b"version": b"tail-1"}
    columns = [pa.array([number], pa.uint64()) for number in (10, 5, 0)]
    batch = pa.record_batch(columns, names=["commit", "change", "place"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata(metadata)) as writer:
        writer.write_batch(batch.replace_schema_metadata(metadata))
    assert decode(sink.getvalue().to_pybytes()).coverage == made.coverage


def test_a_note_is_due_when_the_log_advances_without_rows() -> None:
    buffer, clock = filled(1), Clock
    clock.now = 100.0
    made = book(buffer, clock)
    assert not made.wants_note(), "a change is undecided"
    record = made.record(1, RowList([row(1)]), 0)
    buffer.decide(record.ids, record.coverage)
    buffer.add(Chunk(idle_at=500))
    assert not made.wants_note(), "the last record is new"
    clock.now += 4
    assert made.wants_note()
    note = made.record(2, RowList(), 0)
    assert note.coverage.noted == 500
    buffer.decide((), note.coverage)
    clock.now += 4
    assert not made.wants_note(), "no position has changed"


def test_a_note_directly_follows_a_record_with_dead_changes() -> None:
    buffer, clock = filled(2), Clock
    made = book(buffer, clock)
    record = made.record(1, RowList([row(1, BAD)]), 0)
    buffer.decide(record.ids, record.coverage)
    assert made.wants_note()
    assert not made.record(2, RowList(), 0).coverage.dead


def test_no_note_is_written_before_dead_changes_are_reread() -> None:
    buffer = LogBuffer(Bounds())
    buffer.cover(Coverage(position=Position(20, 5, 0), dead={Position(20, 5, 0): BAD}))
    assert not book(buffer).wants_note()


def test_a_record_of_another_term_or_timeline_is_inherited() -> None:
    made = book(filled(1))
    found = made.record(3, RowList([row(1)]), 0)
    next_book = book(filled(1))
    for origin, inherits in (
        (found.origin, False),
        (replace(found.origin, term="older"), True),
        (replace(found.origin, timeline=2), True),
    ):
        next_book.require_ours([replace(found, origin=origin)])
        assert next_book.inherits() is inherits


def test_only_records_of_this_attempt_are_its_own() -> None:
    found, made = book(filled(1)).record(3, RowList([row(1)]), 0), book(filled(1))
    assert not made.wrote(found)
    own = made.record(4, RowList([row(1)]), 0)
    assert made.wrote(own)
    assert not made.wrote(found), "although records were made since"
