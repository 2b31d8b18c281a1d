"""The buffer of changes that were read from the WAL and that no progress record covers yet."""

from datetime import UTC, datetime
from typing import Any

import pytest

from thresher.db.outbox_store import PendingRow
from thresher.delivery.fate import Kind, dead
from thresher.delivery.reading.row_source import ReadRequest
from thresher.tail.buffer import Bounds, LogBuffer
from thresher.tail.chunk import Chunk
from thresher.tail.coverage import Coverage
from thresher.tail.position import Position
from thresher.tail.problem import LogLost

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BAD = dead(Kind.MALFORMED, "bad")


def position(commit: int, change: int = 0) -> Position:
    return Position(commit, change or commit - 5, 0)


def chunk(*positions: Position, ended: int = 0, topic: str = "a", idle_at: int | None = None) -> Chunk:
    rows: list[Any] = [(each.commit, NOW, topic, b"k", b"v", (), (), None, None, None) for each in positions]
    return Chunk(
        positions=list(positions),
        rows=rows,
        commit_times=[each.commit for each in positions],
        ended=ended,
        idle_at=idle_at,
        size=10 * len(rows),
    )


def filled(*positions: Position, ended: int = 0, **bounds: int) -> LogBuffer:
    buffer = LogBuffer(Bounds(**bounds))
    buffer.add(chunk(*positions, ended=ended))
    return buffer


def taken(buffer: LogBuffer, **changes: Any) -> list[int]:
    request = ReadRequest(**{"rows": 10, "bytes": 1_000, "in_flight": {}, **changes})
    return [row[0] for row in buffer.take(request)[0]]


def test_a_read_leaves_out_changes_in_flight_or_held() -> None:
    buffer = filled(position(10), position(20), position(30))
    buffer.add(chunk(position(40), topic="b"))
    assert taken(buffer) == [1, 2, 3, 4]
    assert taken(buffer, in_flight={1: 0}) == [2, 3, 4]
    assert taken(buffer, held=["a"]) == [4]
    assert taken(buffer, held_keys=[("b", b"k")]) == [1, 2, 3]
    assert taken(buffer, held_rows={2: 0}) == [1, 3, 4]
    assert taken(buffer, rows=2) == [1, 2]
    assert taken(buffer, bytes=11) == [1, 2]


def test_a_read_returns_changes_of_the_wanted_topics_alone() -> None:
    buffer = filled(position(10), position(20))
    buffer.add(chunk(position(30), topic="b"))
    assert taken(buffer, held=["b"], among=True) == [3]
    assert taken(buffer, held=["a", "b"], among=True) == [1, 2, 3]
    assert taken(buffer, held=[], among=True) == [], "all topics that were available are held by now"


def test_not_more_changes_wait_than_a_record_can_name() -> None:
    buffer = filled(position(10), position(20), waiting=2)
    buffer.add(chunk(position(30), topic="b"))
    assert taken(buffer, held=["a"]) == []


def test_a_record_names_tens_of_thousands_of_waiting_changes() -> None:
    buffer = filled(*(position(1_000 * n) for n in range(1, 25_001)))
    buffer.add(chunk(position(90_000_000), topic="b"))
    assert taken(buffer, held=["a"]) == [25_001]
    small = filled(*(position(1_000 * n) for n in range(1, 25_001)), waiting_bytes=90_000)
    small.add(chunk(position(90_000_000), topic="b"))
    assert taken(small, held=["a"]) == []


def test_a_buffer_is_blocked_while_too_many_changes_wait() -> None:
    now = 100.0
    buffer = LogBuffer(Bounds(waiting=2), clock=lambda: now)
    buffer.add(chunk(position(10), position(20)))
    buffer.add(chunk(position(30), topic="b"))
    taken(buffer, held=["a"])
    now = 140.0
    taken(buffer, held=["a"])
    assert taken(buffer, held=["a"], among=True, sweeping=True) == [1, 2], "a sweep says nothing of others"
    assert buffer.blocked_seconds == 40.0
    assert taken(buffer) == [1, 2, 3]
    assert buffer.blocked_seconds == 0.0


def test_a_full_buffer_takes_no_more() -> None:
    assert filled(position(10), rows=1).room == (0, 0)
    assert filled(position(10), bytes=10).room == (0, 0)
    assert filled(position(10), rows=2, bytes=30).room == (1, 20)


def test_a_record_names_overtaken_changes() -> None:
    buffer = filled(position(10), position(20), position(30), ended=31)
    after = buffer.after([2])
    assert (after.position, after.waiting) == (position(20), frozenset({position(10)}))
    assert not after.decides(position(10))
    assert after.decides(position(20))
    assert not after.decides(position(30))


def test_a_record_names_waiting_changes_not_yet_read_again() -> None:
    buffer = LogBuffer(Bounds())
    covered = Coverage(position=position(40), waiting=frozenset({position(10), position(20)}), noted=5)
    buffer.cover(covered)
    buffer.add(chunk(position(10)))
    after = buffer.after([1])
    assert (after.position, after.waiting, after.noted) == (position(40), frozenset({position(20)}), 5)


def test_a_waiting_change_sent_later_moves_no_position_back() -> None:
    buffer = filled(position(10), position(20), ended=21)
    buffer.decide([2], buffer.after([2]))
    after = buffer.after([1])
    assert (after.position, after.waiting, after.noted) == (position(20), frozenset(), 21)


def test_the_log_is_kept_from_the_oldest_undecided_commit_on() -> None:
    buffer = filled(position(10), ended=11)
    buffer.add(chunk(position(20), ended=21))
    buffer.add(chunk(position(30), ended=31, idle_at=50))
    assert buffer.after([]).noted == 0
    assert buffer.after([1]).noted == 11
    assert buffer.after([2, 3]).noted == 0
    assert buffer.after([1, 2]).noted == 21
    assert buffer.after([1, 2, 3]).noted == 50


def test_a_commit_that_has_not_ended_is_not_confirmed() -> None:
    buffer = filled(position(10), ended=11)
    buffer.add(chunk(position(20, 12), position(20, 13), ended=11))
    assert buffer.after([1, 2, 3]).noted == 11


def test_changes_that_the_last_record_covers_are_left_out() -> None:
    buffer = LogBuffer(Bounds())
    buffer.cover(Coverage(position=position(20), waiting=frozenset({position(10)})))
    buffer.add(chunk(position(5), position(10), position(20), position(30)))
    assert taken(buffer) == [1, 2]
    assert list(buffer.dead_of([(1, BAD), (2, BAD)])) == [position(10), position(30)]


def test_no_change_is_given_before_dead_ones_are_stored() -> None:
    buffer = LogBuffer(Bounds())
    waiting = frozenset({position(10)})
    buffer.cover(Coverage(position=position(20), waiting=waiting, dead={position(20): BAD}))
    assert buffer.add(chunk(position(10))) == []
    assert taken(buffer) == []
    assert buffer.after([]).noted == 0
    (owed,) = buffer.add(chunk(position(20), ended=21))
    assert (owed.row[0], owed.fate) == (20, BAD)
    assert taken(buffer) == []
    buffer.dead_written()
    assert taken(buffer) == [1]


def test_dead_changes_before_the_slot_were_stored() -> None:
    buffer = LogBuffer(Bounds())
    buffer.cover(Coverage(position=position(20), dead={position(20): BAD}))
    buffer.begin_at(21)
    assert not buffer.has_unwritten_dead


def test_a_record_found_later_removes_its_changes() -> None:
    buffer = filled(position(10), position(20), position(30), ended=31)
    (found,) = buffer.cover(Coverage(position=position(20), dead={position(20): BAD}))
    assert found.row[0] == 20
    assert taken(buffer) == [3]
    assert not buffer.has_unwritten_dead
    assert buffer.cover(Coverage(position=position(20), dead={position(20): BAD})) == []


def test_the_log_is_quiet_when_nothing_is_undecided() -> None:
    assert filled(position(10), ended=11).quiet_at is None
    buffer = filled(position(10), ended=11)
    buffer.decide([1], buffer.after([1]))
    assert buffer.quiet_at == 11
    buffer.add(chunk(idle_at=99))
    assert buffer.quiet_at == 99


def test_a_dead_change_stays_owed_until_it_is_stored() -> None:
    buffer, covered = LogBuffer(Bounds()), Coverage(position=position(20), dead={position(20): BAD}, noted=10)
    buffer.cover(covered)
    buffer.begin_at(10)
    assert len(buffer.add(chunk(position(20), ended=21))) == 1
    # The producer failed meanwhile, and recovery finds the same record.
    assert buffer.cover(covered) == []
    assert (buffer.has_unwritten_dead, buffer.after([]).noted, buffer.after([]).dead) == (True, 10, {position(20): BAD})
    buffer.dead_written()
    assert (buffer.has_unwritten_dead, buffer.after([]).noted, buffer.after([]).dead) == (False, 21, {})


@pytest.mark.parametrize(
    "named",
    [
        Coverage(position=position(20)),
        Coverage(position=position(30), waiting=frozenset({position(20)})),
        Coverage(position=position(30), dead={position(20): BAD}),
    ],
    ids=["covered", "waiting", "dead"],
)
@pytest.mark.parametrize(
    "came", [chunk(position(15), ended=21), chunk(position(25)), chunk(idle_at=40)], ids=["ended", "overtaken", "idle"]
)
def test_a_log_without_changes_that_progress_names_is_foreign(named: Coverage, came: Chunk) -> None:
    buffer = LogBuffer(Bounds())
    buffer.cover(named)
    buffer.begin_at(10)
    with pytest.raises(LogLost, match="not the WAL"):
        buffer.add(came)


def test_a_log_that_begins_behind_named_changes_is_accepted() -> None:
    buffer = LogBuffer(Bounds())
    named = Coverage(position=position(20), waiting=frozenset({position(10)}), dead={position(20): BAD}, noted=21)
    buffer.cover(named)
    buffer.begin_at(21)
    buffer.cover(named)
    buffer.add(chunk(position(30), ended=31))
    assert taken(buffer) == [1]


def test_a_malformed_row_becomes_dead_unchanged() -> None:
    flawed: PendingRow = (7, NOW, "a", b"k", b"v", (), (), None, None, "headers", None, ([["x"]], [], None))
    buffer = LogBuffer(Bounds())
    buffer.add(Chunk(positions=[position(10)], rows=[flawed], commit_times=[1], size=10))
    request = ReadRequest(rows=10, bytes=1_000, in_flight={})
    assert [len(row) for row in buffer.take(request)[0]] == [10], "a row to be sent has no further columns"
    assert buffer.dead_of([(1, BAD)])[position(10)].row == flawed
