"""Copies of Starts: which copies count, and which offset may be committed meanwhile."""

from types import SimpleNamespace
from typing import Any

from thresher.queue.wire.marker import MarkerType
from thresher.tracker.protocol.copies import Copies
from thresher.tracker.protocol.marks import LOST_SECONDS
from thresher.tracker.protocol.started import Started

END: Any = SimpleNamespace(type=MarkerType.END, HasField=lambda _: False)


def message(number: int = 1) -> Started:
    return Started((0, number), (0, number, 0), b"q", b"", offset=3, now_ms=0)


def test_a_copy_written_before_the_committed_offset_is_void() -> None:
    copies = Copies(start=10, window=100)
    assert not copies.counts(offset=15, read_to=9)
    assert copies.counts(offset=15, read_to=10)


def test_a_copy_beyond_the_remembered_window_is_void() -> None:
    copies = Copies(start=0, window=100)
    assert copies.counts(offset=150, read_to=50)
    assert not copies.counts(offset=151, read_to=50)
    assert not copies.counts(offset=40, read_to=50), "its writer cannot have read beyond the copy"


def test_the_committed_offset_stays_during_a_rebuild() -> None:
    copies = Copies(start=10, window=100)
    assert copies.needed(50) == 10
    copies.rebuilt()
    assert copies.needed(50) == 50


def test_an_unread_copy_holds_the_committed_offset_back() -> None:
    copies = Copies(start=0, window=100)
    copies.rebuilt()
    copies.written([message(1), message(2)], read_to=20, at=0.0)
    assert (copies.unread, copies.needed(50), copies.needed(15)) == (True, 20, 15)
    copies.counts(offset=30, read_to=20)
    assert copies.needed(50) == 20
    copies.counts(offset=31, read_to=20)
    assert (copies.unread, copies.needed(50)) == (False, 50)


def test_a_copy_by_an_earlier_tracker_is_not_ours() -> None:
    copies = Copies(start=0, window=100)
    copies.written([message()], read_to=40, at=0.0)
    copies.counts(offset=30, read_to=20)
    assert copies.unread, "a copy that is read during a rebuild is an earlier tracker's"
    copies.rebuilt()
    copies.counts(offset=50, read_to=40)
    assert not copies.unread


def test_copies_lost_by_the_broker_are_not_awaited() -> None:
    copies = Copies(start=0, window=100)
    copies.rebuilt()
    copies.written([message()], read_to=40, at=100.0)
    copies.give_up(100.0 + LOST_SECONDS)
    assert copies.unread
    copies.give_up(100.1 + LOST_SECONDS)
    assert not copies.unread


def test_copies_are_not_judged_without_a_committed_offset() -> None:
    copies = Copies(start=10, window=100, committed=False)
    assert copies.counts(offset=15, read_to=9)


def test_an_end_after_the_copys_read_position_counts() -> None:
    copies = Copies(start=0, window=100)
    copies.rebuilt()
    started = message()
    copies.written([started], read_to=20, at=0.0)
    copies.ended(started, 25, END)
    found = copies.later(started.id, started.origin, 20)
    assert found is not None
    assert found.type == MarkerType.END
    assert copies.later(started.id, started.origin, 26) is None
    assert copies.later((0, 9), (0, 9, 0), 20) is None
