"""The reader ahead, over a head that is played by hand: it reads when it is let, and gives what it is told."""

import queue
import threading
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from thresher.delivery.batch import Few, batch_of, rows_of
from thresher.relay.reading.prefetch import ReadAhead, pause

# Only how long a failing test waits.
PATIENCE = 60.0


class Played:
    """A head whose every read waits for an answer."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[int, set[int], set[str]]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.closed = False

    def read(
        self, rows: int, _size: int, in_flight: Collection[int], held: Collection[str], _generation: int
    ) -> pa.RecordBatch | None:
        self.asked.put((rows, set(in_flight), set(held)))
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True

    def next_read(self) -> tuple[int, set[int], set[str]]:
        """Wait until a read is under way, and return what it asked for."""
        return self.asked.get(timeout=PATIENCE)

    def find(self, *ids: int) -> None:
        """End the read that is under way."""
        rows: list[tuple[Any, ...]] = [(id_, None, "t", b"k", b"v", [], [], None, None) for id_ in ids]
        self.answers.put(batch_of(rows) if ids else None)


@pytest.fixture
def head() -> Played:
    return Played()


@pytest.fixture
def ahead(head: Played) -> Iterator[ReadAhead]:
    yield from started(head, most_rows=4_000)


def started(head: Played, most_rows: int, **more: Any) -> Iterator[ReadAhead]:
    made = ReadAhead(lambda: head, most_rows=most_rows, poll_seconds=0.0, **more)  # type: ignore[arg-type, return-value]
    made.start()
    yield made
    made._stopped.set()
    # Whatever it waits for, it gets.
    for _ in range(3):
        head.answers.put(None)
    made.close()
    made._thread.join(PATIENCE)
    assert not made._thread.is_alive()
    assert head.closed


def taken(ahead: ReadAhead) -> list[int]:
    batch = ahead.take(PATIENCE)
    assert batch is not None
    return batch.column("id").to_pylist()  # type: ignore[no-any-return]


def test_what_was_read_is_taken_with_its_lots_number(ahead: ReadAhead, head: Played) -> None:
    head.find(1, 2)
    batch = ahead.take(PATIENCE)
    assert batch is not None
    lot = ahead.lots[batch.schema.metadata[b"lot"]]
    assert lot.batch.column("id").to_pylist() == [1, 2]
    assert ahead.current(lot)


def test_a_few_rows_that_nobody_looks_into_are_taken_without_columns(head: Played) -> None:
    for ahead in started(head, most_rows=2, rows_of=rows_of):
        head.answers.put(
            Few([(3, None, "t", b"k", b"v", [], [], None, None), (1, None, "t", b"l", b"v", [], [], None, None)])
        )
        batch = ahead.take(PATIENCE)
        assert batch is not None
        assert batch.num_rows == 0
        lot = ahead.lots[batch.schema.metadata[b"lot"]]
        assert isinstance(lot.read, Few)
        assert lot.read.ids == lot.batch.column("id").to_pylist() == [1, 3]
        assert head.next_read()[1] == set()
        assert head.next_read()[1] == {1, 3}


def test_a_few_rows_are_cut_into_lots_too(grown: ReadAhead, head: Played) -> None:
    head.answers.put(Few([(id_, None, "t", b"k", b"v", [], [], None, None) for id_ in (2, 5, 1)]))
    assert [taken(grown) for _ in range(2)] == [[1, 2], [5]]


def test_nothing_within_the_time_is_none(ahead: ReadAhead) -> None:
    assert ahead.take(0.0) is None


def test_an_empty_head_is_read_again(ahead: ReadAhead, head: Played) -> None:
    head.find()
    head.find(1)
    assert taken(ahead) == [1]


def test_rows_in_flight_are_left_out_until_they_are_settled(ahead: ReadAhead, head: Played) -> None:
    assert head.next_read()[1] == set()
    head.find(1, 2)
    taken(ahead)
    assert head.next_read()[1] == {1, 2}
    head.find(3)
    ahead.settled([1])
    taken(ahead)
    assert head.next_read()[1] == {2, 3}


def test_only_one_lot_is_read_ahead(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    assert taken(ahead) == [1]
    head.next_read()
    head.find(2)
    head.find(3)
    assert taken(ahead) == [2]
    assert head.next_read()[1] == {1, 2}


@pytest.fixture
def grown(head: Played) -> Iterator[ReadAhead]:
    """Its lots cannot grow any more: they have two rows."""
    yield from started(head, most_rows=2)


def test_a_deep_read_is_several_lots_the_oldest_rows_first(grown: ReadAhead, head: Played) -> None:
    assert head.next_read()[0] == 8
    # As a head gives them: one bucket after another, each by id.
    head.find(2, 5, 7, 1, 3)
    assert [taken(grown) for _ in range(3)] == [[1, 2], [3, 5], [7]]


def test_of_many_lots_the_last_is_not_waited_for(grown: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1, 2, 3, 4, 5)
    assert taken(grown) == [1, 2]
    assert taken(grown) == [3, 4]
    assert head.next_read()[1] == {1, 2, 3, 4, 5}, "the one that is left is not read again"


def test_nothing_is_read_while_many_lots_are_left_or_more_than_one_is_in_flight(grown: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(*range(2_004))
    lots = [taken(grown) for _ in range(1_000)]
    assert head.asked.empty(), "two lots are left"
    assert taken(grown) == [2_000, 2_001]
    assert head.asked.empty(), "too many are in flight"
    for lot in lots[:500]:
        grown.settled(lot)
    assert head.asked.empty(), "still too many"
    for lot in lots[500:]:
        grown.settled(lot)
    found = head.next_read()[1]
    # Not before the other thousand, and not only behind all of them.
    assert {2_000, 2_001, 2_002, 2_003} <= found
    assert len(found) <= 1_000 + 2


def test_renewing_forgets_all_lots_of_a_read(grown: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1, 2, 3, 4)
    assert taken(grown) == [1, 2]
    grown.renew()
    assert head.next_read()[1] == set()
    head.find(1, 2)
    assert taken(grown) == [1, 2]


def test_lots_that_may_grow_are_read_one_at_a_time(ahead: ReadAhead, head: Played) -> None:
    assert head.next_read()[0] == 1_000


def test_rows_to_be_marked_are_read_one_lot_at_a_time(head: Played) -> None:
    for ahead in started(head, most_rows=2, window_rows=4):
        assert head.next_read()[0] == 2
        head.find(1, 2)
        assert taken(ahead) == [1, 2]


def test_renewing_forgets_a_lot_that_is_ready(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    with ahead._state:
        assert ahead._state.wait_for(lambda: bool(ahead._ready), PATIENCE)
    ahead.renew()
    assert head.next_read()[1] == set()
    head.find(5)
    assert taken(ahead) == [5]


def test_renewing_forgets_a_read_that_is_under_way(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    ahead.renew()
    head.find(1)
    assert head.next_read()[1] == set(), "it is not in flight either"
    head.find(5)
    assert taken(ahead) == [5]


def test_a_lot_that_was_taken_before_a_renewal_is_not_current_after_it(ahead: ReadAhead, head: Played) -> None:
    head.find(1)
    taken(ahead)
    (lot,) = ahead.lots.values()
    ahead.renew()
    assert not ahead.current(lot)


def test_renewing_forgets_what_is_in_flight(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    taken(ahead)
    head.next_read()
    ahead.renew()
    head.find()
    assert head.next_read()[1] == set()


def test_an_error_is_raised_where_a_lot_is_taken_every_time(ahead: ReadAhead, head: Played) -> None:
    head.answers.put(RuntimeError("the database hung up"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="hung up"):
            ahead.take(PATIENCE)


def test_a_head_that_cannot_be_opened_is_an_error_too() -> None:
    def refuse() -> Any:
        raise RuntimeError("no such table")

    ahead = ReadAhead(refuse, most_rows=10, poll_seconds=0.0)
    ahead.start()
    with pytest.raises(RuntimeError, match="no such table"):
        ahead.take(PATIENCE)
    ahead.close()


def test_nothing_is_read_before_the_start(head: Played) -> None:
    ahead = ReadAhead(lambda: head, most_rows=10, poll_seconds=0.0)  # type: ignore[arg-type, return-value]
    assert ahead.take(0.0) is None
    assert head.asked.empty()
    ahead.close()


def test_a_held_topic_is_left_out_for_a_while(ahead: ReadAhead, head: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    head.next_read()
    # Its own view of the time: other threads of the process go by the real one.
    monkeypatch.setattr("thresher.relay.reading.prefetch.time", SimpleNamespace(monotonic=lambda: now[0]))
    ahead.hold(["t", "u"])
    for seconds, expected in ((0.0, {"t", "u"}), (1.9, {"t", "u"}), (0.2, set())):
        now[0] += seconds
        head.find(1)
        taken(ahead)
        assert head.next_read()[2] == expected


def test_one_long_look_is_no_reason_to_look_less_often_and_two_are(
    ahead: ReadAhead, head: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    waits: queue.SimpleQueue[float] = queue.SimpleQueue()
    head.next_read()
    monkeypatch.setattr("thresher.relay.reading.prefetch.time", SimpleNamespace(monotonic=lambda: now[0]))
    stopped = SimpleNamespace(is_set=ahead._stopped.is_set, set=ahead._stopped.set, wait=waits.put)
    monkeypatch.setattr(ahead, "_stopped", stopped)
    head.find()
    waits.get(timeout=PATIENCE)
    for seconds, waited in ((0.05, 0.0), (0.06, 0.5), (0.001, 0.0), (0.05, 0.0)):
        head.next_read()
        now[0] += seconds
        head.find()
        assert waits.get(timeout=PATIENCE) == pytest.approx(waited)


# Pace


def pace(most_rows: int = 4_000) -> ReadAhead:
    return ReadAhead(lambda: None, most_rows=most_rows, poll_seconds=0.0)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("seconds", "sizes"), [(0.3, [2_000, 4_000, 4_000]), (0.1, [4_000, 4_000])])
def test_a_quick_and_full_lot_makes_the_next_larger_up_to_the_most(seconds: float, sizes: list[int]) -> None:
    ahead = pace()
    for size in sizes:
        ahead.pace(ahead._rows, seconds, 1.0)
        assert ahead._rows == size


def test_a_slow_lot_halves_the_next_down_to_the_least() -> None:
    ahead = pace()
    ahead.pace(1_000, 1.1, 1.0)
    assert ahead._rows == 500
    ahead.pace(100, 1.1, 1.0)
    assert ahead._rows == 50, "half of what was slow"
    for _ in range(9):
        ahead.pace(ahead._rows, 1.1, 1.0)
    assert ahead._rows == 10


@pytest.mark.parametrize(("rows", "seconds"), [(749, 0.1), (1_000, 0.6), (1_000, 1.0)])
def test_a_lot_that_is_neither_slow_nor_quick_and_full_changes_nothing(rows: int, seconds: float) -> None:
    ahead = pace()
    ahead.pace(rows, seconds, 1.0)
    assert ahead._rows == 1_000


def test_lots_grow_also_where_reads_aim_at_a_little_less_than_is_wanted() -> None:
    ahead = pace()
    ahead.pace(950, 0.1, 1.0)
    assert ahead._rows == 4_000


def test_no_more_is_read_than_the_most() -> None:
    ahead = pace(most_rows=5)
    ahead.pace(5, 1.1, 1.0)
    assert ahead._rows <= 5


def test_with_two_lots_in_flight_nothing_is_read_until_one_is_settled(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(*range(1_000))
    taken(ahead)
    head.next_read()
    head.find(*range(1_000, 2_000))
    taken(ahead)
    # A read would step over all of them.
    with ahead._state:
        assert not ahead._is_time()
    ahead.settled(range(1_000))
    _, in_flight, _ = head.next_read()
    assert in_flight == set(range(1_000, 2_000))


def test_two_lots_in_flight_that_go_back_are_read_again(ahead: ReadAhead, head: Played) -> None:
    for start in (0, 1_000):
        head.next_read()
        head.find(*range(start, start + 1_000))
        taken(ahead)
    ahead.renew()
    assert head.next_read()[1] == set()


def test_a_shard_in_use_looks_as_often_as_it_is_told() -> None:
    assert pause(0.0, 0.4, 0.001) == 0.001


def test_the_longer_nothing_has_come_the_less_often_it_looks_down_to_a_tenth() -> None:
    assert pause(0.0, 2.5, 0.001) == pytest.approx(0.005)
    assert pause(0.0, 3600.0, 0.001) == pytest.approx(0.02)
    assert pause(0.0, 3600.0, 2.0) == 7.2


def test_after_a_long_look_it_waits_ten_times_as_long_up_to_a_second() -> None:
    assert pause(0.05, 0.0, 0.001) == pytest.approx(0.5)
    assert pause(5.0, 0.0, 0.001) == 1.0


def test_lots_that_nobody_looks_into_are_turned_into_rows_ahead(head: Played) -> None:
    for ahead in started(head, most_rows=2, rows_of=lambda batch: [*rows_of(batch), "turned"]):
        head.find(1, 2, 3, 4)
        for ids in ([1, 2], [3, 4]):
            assert taken(ahead) == ids
            (lot,) = ahead.lots.values()
            assert lot.rows is not None
            assert [*(row.id for row in lot.rows[:-1]), lot.rows[-1]] == [*ids, "turned"]


def test_renewing_forgets_lots_that_are_still_being_turned_into_rows(head: Played) -> None:
    turning, go = threading.Event(), threading.Event()

    def slowly(batch: pa.RecordBatch) -> Any:
        turning.set()
        assert go.wait(PATIENCE)
        return rows_of(batch)

    for ahead in started(head, most_rows=2, rows_of=slowly):
        head.find(1, 2, 3, 4)
        assert turning.wait(PATIENCE)
        ahead.renew()
        go.set()
        assert head.next_read()[1] == set()
        # The next read was asked for with nothing in flight.
        assert head.next_read()[1] == set()
        head.find(3)
        assert taken(ahead) == [3]


def test_large_rows_are_read_fewer_lots_at_a_time(head: Played) -> None:
    for ahead in started(head, most_rows=2, most_bytes=1_000):
        assert head.next_read()[0] == 8
        for size, most in ((10, 8), (250, 4), (400, 2), (9_000, 2)):
            head.answers.put(Few([(1, None, "t", b"", b"x" * size, [], [], None, None)]))
            assert taken(ahead) == [1]
            ahead.settled([1])
            assert head.next_read()[0] == most
