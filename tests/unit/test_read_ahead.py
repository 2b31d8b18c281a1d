"""Reading ahead, with a source that the test controls: when it reads, and what it returns."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.processes import eventually
from tests.set_clock import SetClock
from thresher.delivery.batch import Batch, rows_of
from thresher.delivery.reading.prefetch import Prefetch, pause
from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.reading.row_source import ReadRequest
from thresher.delivery.stored_rows import FewRows, StoredBatch, batch_of

# Only a failing test waits so long.
PATIENCE = 60.0
# The create time of every row, except for a reused id.
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROS = int(NOON.timestamp()) * 1_000_000


def stored(*ids: int) -> list[tuple[Any, ...]]:
    return [(id_, NOON, "t", b"k", b"v", [], [], None, None) for id_ in ids]


class Played:
    """A source in which every read waits for the test's answer."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[int, set[int], set[str]]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.closed = False

    def read(self, request: ReadRequest) -> Any:
        self.asked.put((request.rows, set(request.in_flight), set(request.held)))
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True

    def next_read(self) -> tuple[int, set[int], set[str]]:
        """Wait until a read has begun, and return its request."""
        return self.asked.get(timeout=PATIENCE)

    def find(self, *ids: int) -> None:
        """Answer the current read with these rows."""
        self.answers.put(batch_of(stored(*ids)) if ids else None)


@pytest.fixture
def head() -> Played:
    return Played()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def ahead(head: Played, clock: SetClock) -> Iterator[ReadAhead]:
    yield from started(head, clock=clock, most_rows=4_000)


def started(
    head: Played, *, convert: Any = None, clock: Callable[[], float] = time.monotonic, **bounds: Any
) -> Iterator[ReadAhead]:
    made = ReadAhead(ReadAheadLimits(**bounds), clock=clock)
    prefetch = Prefetch(made, lambda: head, poll_seconds=0.0, convert=convert, clock=clock)
    yield made
    made.close()
    # Release a waiting read.
    for _ in range(3):
        head.answers.put(None)
    prefetch.close(PATIENCE)
    # The thread's last act.
    assert head.closed


def taken(ahead: ReadAhead) -> list[int]:
    batch = ahead.take(PATIENCE)
    assert isinstance(batch, StoredBatch)
    return batch.arrow.column("id").to_pylist()  # type: ignore[no-any-return]


def settle(ahead: ReadAhead, *ids: int) -> None:
    ahead.settled(ids, [MICROS] * len(ids))


def test_a_batch_is_current_until_rows_go_back(ahead: ReadAhead, head: Played) -> None:
    head.find(1, 2)
    batch = ahead.take(PATIENCE)
    assert isinstance(batch, StoredBatch)
    made = Batch(rows=rows_of(batch.stored), generation=batch.generation)
    assert ahead.is_current(made)
    ahead.discard()
    assert not ahead.is_current(made)


def test_a_few_rows_keep_the_order_of_their_ids(head: Played) -> None:
    for ahead in started(head, most_rows=2):
        head.answers.put(FewRows(stored(3, 1)))
        batch = ahead.take(PATIENCE)
        assert isinstance(batch, StoredBatch)
        assert isinstance(batch.stored, FewRows)
        assert batch.stored.ids == batch.arrow.column("id").to_pylist() == [1, 3]
        assert head.next_read()[1] == set()
        assert head.next_read()[1] == {1, 3}


def test_a_few_rows_are_split_into_batches_too(grown: ReadAhead, head: Played) -> None:
    head.answers.put(FewRows(stored(2, 5, 1)))
    assert [taken(grown) for _ in range(2)] == [[1, 2], [5]]


def test_a_reused_id_stays_in_flight(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    taken(ahead)
    head.next_read()
    head.answers.put(FewRows([(1, NOON.replace(hour=13), "t", b"k", b"v", [], [], None, None)]))
    taken(ahead)
    assert head.next_read()[1] == {1}
    # The earlier row with this id is settled; the current one is not.
    settle(ahead, 1)
    head.find()
    assert head.next_read()[1] == {1}


def test_a_take_that_times_out_returns_none(ahead: ReadAhead) -> None:
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
    settle(ahead, 1)
    taken(ahead)
    assert head.next_read()[1] == {2, 3}


def test_only_one_batch_is_read_ahead(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    assert taken(ahead) == [1]
    head.next_read()
    head.find(2)
    eventually(lambda: ahead.ready, PATIENCE)
    assert not ahead.due
    assert taken(ahead) == [2]
    assert head.next_read()[1] == {1, 2}


@pytest.fixture
def grown(head: Played) -> Iterator[ReadAhead]:
    """Return a read-ahead with batches of two rows, which cannot grow."""
    yield from started(head, most_rows=2)


def test_a_large_read_becomes_several_batches_oldest_first(grown: ReadAhead, head: Played) -> None:
    assert head.next_read()[0] == 2
    # In the order of a read by buckets: one bucket after another, each by id.
    head.find(2, 5, 7, 1, 3)
    assert [taken(grown) for _ in range(3)] == [[1, 2], [3, 5], [7]]


def test_nothing_is_read_while_many_batches_wait(grown: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(*range(2_004))
    batches = [taken(grown) for _ in range(1_000)]
    assert head.asked.empty(), "two batches are left"
    assert [taken(grown), taken(grown)] == [[2_000, 2_001], [2_002, 2_003]]
    assert head.asked.empty(), "too many batches are in flight"
    for batch in batches[:500]:
        settle(grown, *batch)
    assert head.asked.empty(), "still too many"
    for batch in batches[500:]:
        settle(grown, *batch)
    found = head.next_read()[1]
    # The read begins with at most half of the rows still in flight.
    assert {2_000, 2_001, 2_002, 2_003} <= found
    assert len(found) <= 1_000 + 2


def test_discarding_forgets_all_batches_of_a_read(grown: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1, 2, 3, 4)
    assert taken(grown) == [1, 2]
    grown.discard()
    assert head.next_read()[1] == set()
    head.find(1, 2)
    assert taken(grown) == [1, 2]


def test_batches_that_may_grow_are_read_one_at_a_time(ahead: ReadAhead, head: Played) -> None:
    assert head.next_read()[0] == 1_000


def test_rows_to_mark_are_read_one_batch_at_once(head: Played) -> None:
    for ahead in started(head, most_rows=2, window_rows=4):
        assert head.next_read()[0] == 2
        head.find(1, 2)
        assert taken(ahead) == [1, 2]


def test_discarding_forgets_a_batch_that_is_ready(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    eventually(lambda: ahead.ready, PATIENCE)
    ahead.discard()
    assert head.next_read()[1] == set()
    head.find(5)
    assert taken(ahead) == [5]


def test_discarding_forgets_a_read_that_is_under_way(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    ahead.discard()
    head.find(1)
    assert head.next_read()[1] == set(), "its rows are not in flight"
    head.find(5)
    assert taken(ahead) == [5]


def test_discarding_forgets_rows_in_flight(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(1)
    taken(ahead)
    head.next_read()
    ahead.discard()
    head.find()
    assert head.next_read()[1] == set()


def test_an_error_is_raised_by_every_later_take(ahead: ReadAhead, head: Played) -> None:
    head.answers.put(RuntimeError("the database hung up"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="hung up"):
            ahead.take(PATIENCE)


def test_a_source_that_cannot_be_opened_is_an_error_too() -> None:
    def refuse() -> Any:
        raise RuntimeError("no such table")

    ahead = ReadAhead(ReadAheadLimits(most_rows=10))
    prefetch = Prefetch(ahead, refuse, poll_seconds=0.0)
    with pytest.raises(RuntimeError, match="no such table"):
        ahead.take(PATIENCE)
    prefetch.close()


def test_a_held_topic_is_left_out_for_a_while(ahead: ReadAhead, head: Played, clock: SetClock) -> None:
    head.next_read()
    ahead.holds.hold(["t", "u"])
    for seconds, expected in ((0.0, {"t", "u"}), (1.9, {"t", "u"}), (0.2, set())):
        clock.now += seconds
        head.find(1)
        taken(ahead)
        assert head.next_read()[2] == expected


def test_only_two_slow_reads_make_reading_less_frequent(
    ahead: ReadAhead, head: Played, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: queue.SimpleQueue[float] = queue.SimpleQueue()
    head.next_read()
    monkeypatch.setattr(ahead, "pause", waits.put)
    head.find()
    waits.get(timeout=PATIENCE)
    for seconds, waited in ((0.05, 0.0), (0.06, 0.5), (0.001, 0.0), (0.05, 0.0)):
        head.next_read()
        clock.now += seconds
        head.find()
        assert waits.get(timeout=PATIENCE) == pytest.approx(waited)


def test_two_batches_in_flight_stop_reading(ahead: ReadAhead, head: Played) -> None:
    head.next_read()
    head.find(*range(1_000))
    taken(ahead)
    head.next_read()
    head.find(*range(1_000, 2_000))
    taken(ahead)
    # A read would scan all these rows.
    assert not ahead.due
    settle(ahead, *range(1_000))
    _, in_flight, _ = head.next_read()
    assert in_flight == set(range(1_000, 2_000))


def test_two_batches_in_flight_that_go_back_are_read_again(ahead: ReadAhead, head: Played) -> None:
    for start in (0, 1_000):
        head.next_read()
        head.find(*range(start, start + 1_000))
        taken(ahead)
    ahead.discard()
    assert head.next_read()[1] == set()


def test_a_busy_shard_polls_at_its_configured_interval() -> None:
    assert pause(0.0, 0.4, 0.001) == 0.001


def test_an_idle_shard_polls_up_to_fifty_times_slower() -> None:
    assert pause(0.0, 2.5, 0.001) == pytest.approx(0.005)
    assert pause(0.0, 3600.0, 0.001) == pytest.approx(0.05)
    assert pause(0.0, 3600.0, 2.0) == 7.2


def test_a_slow_read_is_followed_by_a_longer_wait() -> None:
    assert pause(0.05, 0.0, 0.001) == pytest.approx(0.5)
    assert pause(5.0, 0.0, 0.001) == 1.0


def converted(batch: StoredBatch) -> Batch:
    return Batch(rows=rows_of(batch.stored), generation=batch.generation)


def test_stored_rows_become_rows_ahead(head: Played) -> None:
    for ahead in started(head, most_rows=2, convert=converted):
        head.find(1, 2, 3, 4)
        for ids in ([1, 2], [3, 4]):
            batch = ahead.take(PATIENCE)
            assert isinstance(batch, Batch)
            assert list(batch.rows.ids) == ids


def test_discarding_forgets_batches_that_are_being_converted(head: Played) -> None:
    turning, go = threading.Event(), threading.Event()

    def slowly(batch: StoredBatch) -> Batch:
        turning.set()
        assert go.wait(PATIENCE)
        return converted(batch)

    for ahead in started(head, most_rows=2, convert=slowly):
        head.find(1, 2, 3, 4)
        assert turning.wait(PATIENCE)
        ahead.discard()
        go.set()
        assert head.next_read()[1] == set()
        # The next request has no rows in flight.
        assert head.next_read()[1] == set()
        head.find(3)
        batch = ahead.take(PATIENCE)
        assert isinstance(batch, Batch)
        assert list(batch.rows.ids) == [3]


def test_held_rows_are_left_out_of_reads_until_released(clock: SetClock) -> None:
    ahead = ReadAhead(ReadAheadLimits(most_rows=10), clock=clock)

    def left_out() -> tuple[set[str], set[Any], dict[int, int]]:
        request = ahead.await_due()
        assert request is not None
        return set(request.held), set(request.held_keys), dict(request.held_rows)

    ahead.holds.hold(["t"], [("u", b"k")], {5: MICROS}, {6: MICROS + 1})
    assert left_out() == ({"t"}, {("u", b"k")}, {5: MICROS, 6: MICROS + 1})
    clock.now += 2.1
    assert left_out() == (set(), set(), {6: MICROS + 1})
    ahead.holds.hold([], (), {7: MICROS})
    assert left_out() == (set(), set(), {6: MICROS + 1, 7: MICROS})
    ahead.holds.release()
    assert left_out() == (set(), set(), {})
    ahead.holds.hold([], (), {}, {6: MICROS})
    clock.now += 60.1
    assert left_out() == (set(), set(), {})


def test_sweeps_take_turns_with_other_reads() -> None:
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000))
    ahead.holds.hold(["slow"], lasting=["a", "b", "c"])
    assert ahead.holds.sweep(frozenset("ab")) == frozenset()
    asked = []
    for _ in range(4):
        request = ahead.await_due()
        assert request is not None
        asked.append((request.sweeping, request.among, sorted(request.held)))
    others, sweep = (False, False, ["a", "b", "c", "slow"]), (True, True, ["a", "b"])
    assert asked in ([sweep, others] * 2, [others, sweep] * 2)
    ahead.holds.swept("ab")
    assert ahead.holds.sweep(frozenset("c")) == frozenset("ab")


def test_confined_reads_look_for_new_topics_once_a_second() -> None:
    clock = SetClock()
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000), clock=clock)
    ahead.holds.hold([], lasting=["held"])
    ahead.holds.confine(frozenset({"good", "held"}))
    asked = []
    for clock.now in (1.0, 1.1, 1.9, 2.0, 2.1):
        request = ahead.await_due()
        assert request is not None
        asked.append((request.among, list(request.held)))
    named, exploring = (True, ["good"]), (False, ["held"])
    assert asked == [exploring, named, named, exploring, named]
    ahead.holds.unhold(["held"])
    # A short hold of a good topic ends by itself.
    ahead.holds.hold(["good"])
    asked.clear()
    for clock.now in (2.2, 4.0, 4.5):
        request = ahead.await_due()
        assert request is not None
        asked.append((request.among, sorted(request.held)))
    assert asked == [(True, ["held"]), (False, ["good"]), (True, ["good", "held"])]


def test_confined_reads_look_for_further_topics_that_exist() -> None:
    clock = SetClock()
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000), clock=clock)
    ahead.holds.hold([], lasting=["held"])
    ahead.holds.confine(frozenset({"good"}), {"good", "held", "new"})
    ahead.size.learn(1_000, 0.001, 1.0)
    asked = []
    for clock.now in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 2.3, 2.4, 2.5):
        request = ahead.await_due()
        assert request is not None
        asked.append((request.among, list(request.held)))
        assert request.rows == (ahead.size.rows if request.among else 1_000)
    assert ahead.size.rows > 1_000
    further, named, exploring = (True, ["new"]), (True, ["good"]), (False, ["held"])
    assert asked == [further, named, exploring, named, named, further, named, further, named, exploring]


def test_slow_reads_leave_every_other_to_topics_that_took_rows() -> None:
    clock = SetClock()
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000), clock=clock)
    ahead.holds.hold([], lasting=["held"])
    ahead.holds.confine(frozenset({"good"}), {"new"})
    asked: list[str] = []
    for _ in range(8):
        clock.now += 2.0
        request = ahead.await_due()
        assert request is not None
        asked += request.held
    assert asked == ["new", "good", "held", "good"] * 2


def test_many_further_topics_take_turns() -> None:
    clock = SetClock()
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000), clock=clock)
    names = [f"t{number}" for number in range(12_000)]
    asked: list[str] = []
    for clock.now in (0.1, 0.2, 0.3, 0.4, 0.7):
        ahead.holds.confine(frozenset(), names)
        request = ahead.await_due()
        assert request is not None
        assert len(request.held) <= 5_000
        asked += request.held
    assert len(set(asked)) == len(asked) == 10_000


@pytest.mark.parametrize(("count", "letters", "explored"), [(20_000, 5, True), (20_001, 5, False), (9_000, 249, False)])
def test_reads_name_a_bounded_number_of_held_topics(count: int, letters: int, explored: bool) -> None:
    clock = SetClock()
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000), clock=clock)
    ahead.holds.hold(["slow"], lasting=[f"{number:0{letters}}" for number in range(count - 1)])
    for confined in (None, frozenset({"good"})):
        ahead.holds.confine(confined)
        clock.now += 1.0
        ahead.holds.hold(["slow"])
        request = ahead.await_due()
        assert request is not None
        assert request.among != explored
        assert len(request.held) == (count if explored else len(confined or ()))


def test_a_sweep_that_goes_on_gives_way_to_one_of_other_topics() -> None:
    clock = SetClock()
    ahead = ReadAhead(ReadAheadLimits(most_rows=10_000), clock=clock)
    ahead.holds.hold([], lasting=["busy", "b", "c"])

    def sweeping() -> set[str]:
        requests = [ahead.await_due() for _ in range(2)]
        return {topic for each in requests if each is not None and each.sweeping for topic in each.held}

    ahead.holds.sweep(frozenset({"busy", "b"}))
    clock.now += 4.9
    ahead.holds.sweep(frozenset({"busy", "b", "c"}))
    assert sweeping() == {"busy", "b"}
    clock.now += 0.1
    assert ahead.holds.sweep(frozenset({"busy", "b", "c"})) == frozenset()
    assert sweeping() == {"c"}
    ahead.holds.swept(["busy", "b"])
    assert sweeping() == {"c"}, "the read of the sweep before ends late"
    ahead.holds.swept(["c"])
    assert ahead.holds.sweep(frozenset({"busy", "b"})) == frozenset("c")
    assert sweeping() == {"busy", "b"}
    clock.now += 5.0
    ahead.holds.sweep(frozenset({"busy", "b"}))
    assert sweeping() == {"busy", "b"}, "there are no others"
