"""The window of marked rows is bounded by bytes as well as rows."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.row import Record, Row
from thresher.delivery.stored_rows import FewRows, batch_of, row_sizes
from thresher.relay.protocol.mark_purge_reset import Bounds
from thresher.relay.protocol.scoreboard import Scoreboard
from thresher.relay.settings import Limits

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WINDOW = ReadAheadLimits(most_rows=1_000, window_rows=5_000, window_bytes=1_000, most_bytes=600)


@given(st.lists(st.tuples(st.sampled_from(["read", "settle", "discard"]), st.integers(0, 400)), max_size=60))
def test_bytes_in_flight_stay_within_the_window(steps: list[tuple[str, int]]) -> None:
    ahead, flying, next_id = ReadAhead(WINDOW), dict[int, int](), 0
    for step, number in steps:
        if step == "read" and ahead.due:
            request = ahead.await_due()
            assert request is not None
            # As a read of the table: as many rows as there is room for, and at least one.
            sizes = [number] * max(1, request.bytes // max(1, number))
            ids = range(next_id, next_id := next_id + len(sizes))
            ahead.claim(dict.fromkeys(ids, 0), request.generation, sizes)
            flying.update(zip(ids, sizes, strict=True))
        elif step == "settle" and flying:
            id_ = list(flying)[number % len(flying)]
            ahead.settled([id_], [0])
            del flying[id_]
        elif step == "discard":
            ahead.discard()
            flying.clear()
        assert ahead.bytes_in_flight == sum(flying.values()) <= 1_000
    assert ahead.due == (sum(flying.values()) <= 500 and len(flying) < 5_000)


def test_bytes_in_flight_are_unlimited_without_a_window() -> None:
    ahead = ReadAhead(ReadAheadLimits(most_rows=1_000))
    ahead.claim({1: 0}, 0, [100_000_000])
    assert not ahead.by_bytes
    assert ahead.due


@pytest.mark.parametrize("headers", [([], []), (["n"], [b"12345"]), (["n", "m"], [b"12345", None]), (None, None)])
def test_a_rows_size_counts_key_value_and_headers(headers: tuple[Any, Any]) -> None:
    rows: list[tuple[Any, ...]] = [(id_, NOON, "t", b"key", b"v" * id_, *headers, None, None) for id_ in range(3)]
    rows.append((3, NOON, "t", None, None, [], [], None, None))
    own = sum(len(part or b"") for column in headers for part in column or ())
    assert row_sizes(FewRows(rows)) == row_sizes(batch_of(rows)) == [3 + own, 4 + own, 5 + own, 0]


def test_a_key_with_many_bytes_is_hot() -> None:
    board = Scoreboard(9)
    board.add([Row(id_, 0, "t", b"large", Record("t", b"v" * 100, b"large", -1, 0, None)) for id_ in range(3)])
    board.add([Row(id_, 0, "t", b"small", Record("t", b"v", b"small", -1, 0, None)) for id_ in range(3, 9)])
    assert board.hot(10, 300) == [("t", b"large")]
    board.purged(board.wave())
    assert board.hot(10, 300) == []


def test_the_window_has_room_for_two_batches_of_bytes() -> None:
    assert Bounds.of(Limits()).window_bytes == 2 * Limits().batch_bytes
