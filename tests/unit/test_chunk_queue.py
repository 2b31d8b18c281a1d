"""The queue between the thread that reads the WAL and the one that publishes."""

import threading
from typing import Any

import pytest

from thresher.db.problem import DatabaseLost
from thresher.tail.chunk import Chunk
from thresher.tail.chunk_queue import ChunkQueue
from thresher.tail.position import Position


def chunk(rows: int, *, ended: int = 0, idle_at: int | None = None, size: int | None = None) -> Chunk:
    return Chunk(
        positions=[Position(1, 1, place) for place in range(rows)],
        rows=[(place,) for place in range(rows)],
        commit_times=[0] * rows,
        ended=ended,
        idle_at=idle_at,
        size=rows * 10 if size is None else size,
    )


def queue(rows: int = 10, bytes_: int = 1000, on_room: Any = lambda: None) -> ChunkQueue:
    return ChunkQueue(rows, bytes_, on_room)


def test_a_full_queue_wakes_its_writer_when_it_has_room() -> None:
    told: list[bool] = []
    made = queue(rows=4, on_room=lambda: told.append(True))
    seen = [made.full]
    for _ in range(2):
        made.put(chunk(3))
        seen.append(made.full)
    made.take(1, 1000, 0)
    assert ([*seen, made.full], told) == ([False, False, True, True], [])
    made.take(2, 1000, 0)
    assert (made.full, told) == (False, [True])


def test_bytes_fill_the_queue_too() -> None:
    made = queue(bytes_=100)
    made.put(chunk(1, size=100))
    before = made.full
    assert made.take(5, 1, 0) is not None
    assert (before, made.full) == (True, False)


def test_an_end_comes_with_the_last_of_its_rows() -> None:
    made = queue()
    made.put(chunk(3, ended=70))
    first, last = made.take(2, 1000, 0), made.take(2, 1000, 0)
    assert first is not None
    assert last is not None
    assert (first.ended, last.ended) == (0, 70)
    assert made.take(2, 1000, 0) is None


def test_chunks_without_rows_take_no_room() -> None:
    made = queue()
    for at in range(1, 1000):
        made.put(chunk(0, ended=at, idle_at=at + 1))
    assert len(made) == 1
    assert made.take(1, 1, 0) == Chunk(ended=999, idle_at=1000)
    assert made.take(1, 1, 0) is None


def test_later_rows_make_an_idle_position_obsolete() -> None:
    made = queue()
    made.put(chunk(0, idle_at=5))
    made.put(chunk(1, ended=9))
    taken = made.take(5, 1000, 0)
    assert taken is not None
    assert (taken.idle_at, taken.ended) == (None, 9)


def test_rows_are_taken_before_a_failure_is_raised() -> None:
    made = queue()
    made.put(chunk(1))
    made.fail(DatabaseLost("gone"))
    assert made.take(1, 1, 0) is not None
    with pytest.raises(DatabaseLost, match="gone"):
        made.take(1, 1, 60)


def test_a_waiting_reader_is_woken_by_rows_or_failure() -> None:
    made = queue()
    threading.Timer(0.05, made.put, [chunk(1)]).start()
    assert made.take(1, 1, 60) is not None
    threading.Timer(0.05, made.fail, [DatabaseLost("gone")]).start()
    with pytest.raises(DatabaseLost):
        made.take(1, 1, 60)
