"""Copies of Starts: which of them count, and what may be committed meanwhile."""

from types import SimpleNamespace
from typing import Any

from thresher.queue.wire.marker import MarkerType
from thresher.tracker.protocol.copies import Copies
from thresher.tracker.protocol.marks import LOST_SECONDS
from thresher.tracker.protocol.started import Started

END: Any = SimpleNamespace(type=MarkerType.END, HasField=lambda _: False)


def message(number: int = 1) -> Started:
    return Started((0, number), (0, number, 0), b"q", b"", offset=3, now_ms=0)


def test_a_copy_that_is_older_than_the_committed_offset_is_of_a_message_that_has_ended() -> None:
    copies = Copies(start=10, window=100)
    assert not copies.counts(offset=15, read_to=9)
    assert copies.counts(offset=15, read_to=10)


def test_a_copy_that_lies_further_behind_than_is_remembered_is_void() -> None:
    copies = Copies(start=0, window=100)
    assert copies.counts(offset=150, read_to=50)
    assert not copies.counts(offset=151, read_to=50)
    assert not copies.counts(offset=40, read_to=50), "nobody has read what is not there"


def test_while_it_rebuilds_nothing_is_committed_but_what_was() -> None:
    copies = Copies(start=10, window=100)
    assert copies.needed(50) == 10
    copies.rebuilt()
    assert copies.needed(50) == 50


def test_until_a_copy_was_read_what_its_writer_had_read_is_needed() -> None:
    copies = Copies(start=0, window=100)
    copies.rebuilt()
    copies.written([message(1), message(2)], read_to=20, at=0.0)
    assert (copies.unread, copies.needed(50), copies.needed(15)) == (True, 20, 15)
    copies.counts(offset=30, read_to=20)
    assert copies.needed(50) == 20
    copies.counts(offset=31, read_to=20)
    assert (copies.unread, copies.needed(50)) == (False, 50)


def test_a_copy_of_an_earlier_tracker_is_none_of_ours() -> None:
    copies = Copies(start=0, window=100)
    copies.written([message()], read_to=40, at=0.0)
    copies.counts(offset=30, read_to=20)
    assert copies.unread, "it was read while rebuilding: an earlier tracker's"
    copies.rebuilt()
    copies.counts(offset=50, read_to=40)
    assert not copies.unread


def test_copies_that_the_broker_has_lost_are_not_waited_for() -> None:
    copies = Copies(start=0, window=100)
    copies.rebuilt()
    copies.written([message()], read_to=40, at=100.0)
    copies.give_up(100.0 + LOST_SECONDS)
    assert copies.unread
    copies.give_up(100.1 + LOST_SECONDS)
    assert not copies.unread


def test_a_start_that_is_no_committed_offset_says_nothing_of_copies() -> None:
    copies = Copies(start=10, window=100, committed=False)
    assert copies.counts(offset=15, read_to=9)


def test_an_end_between_is_later_than_the_copy_and_one_before_is_not() -> None:
    copies = Copies(start=0, window=100)
    copies.rebuilt()
    started = message()
    copies.written([started], read_to=20, at=0.0)
    copies.ended(started, 25, END)
    assert copies.later(started.id, started.origin, 20) is END
    assert copies.later(started.id, started.origin, 26) is None
    assert copies.later((0, 9), (0, 9, 0), 20) is None
