"""A shard's counts of its transactions, and of the errors that end it."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from thresher.core.clock import ServerClock
from thresher.core.errors import Superseded
from thresher.db.problem import DatabaseLost
from thresher.delivery import columns
from thresher.delivery.batch import column_rows, rows_of
from thresher.delivery.fate import FILTERED, Kind, dead
from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.shard.meter import BATCH, END_TO_END, PUBLISH, SETTLE, Meter, counting_errors, shares
from thresher.delivery.stored_rows import batch_of
from thresher.kafka.producer_problem import ProducerProblem
from thresher.observe.figure_sink import Number
from thresher.observe.histogram import Histogram
from thresher.relay.protocol.progress import Origin, progress_of

ORIGIN = Origin(outbox_id="o", system_id="s", incarnation="i", term="t", shard=0)
SECOND = 1_000_000


class Figures:
    def __init__(self) -> None:
        self.counts: dict[str, Number] = {}
        self.gauges: dict[str, Number] = {}

    def count(self, name: str, amount: Number = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def gauge(self, name: str, value: Number) -> None:
        self.gauges[name] = value


def row(number: int, create_time: int = 0, plan: Any = None) -> Row:
    return Row(number, create_time, "t", b"k", plan or Record("t", b"value", b"key", -1, 0, None))


def metered(rows: Sequence[Row], now_us: int | None, clock: Callable[[], float] = lambda: 0.0) -> Figures:
    figures = Figures()
    meter = Meter(figures, clock)
    meter.begun()
    carried = RowList(rows)
    meter.published(progress_of(ORIGIN, 1, carried, 0), carried, now_us)
    return figures


def test_a_transaction_is_counted_with_its_rows_bytes_and_time() -> None:
    times = iter([100.0, 100.3])
    counts = metered([row(n, create_time=7 * SECOND) for n in range(5)], 9 * SECOND, lambda: next(times)).counts
    assert (counts["transactions"], counts["relayed"], counts["relayed_bytes"]) == (1, 5, 5 * 8)
    assert Histogram.read(BATCH, counts).cumulative()[:3] == [(1, 0), (2, 0), (5, 1)]
    publish = Histogram.read(PUBLISH, counts)
    assert publish.count == 1
    assert publish.sum == pytest.approx(0.3)
    age = Histogram.read(END_TO_END, counts)
    assert age.count == 5
    assert age.sum == pytest.approx(10.0)


def test_unsent_rows_are_counted_by_their_fate() -> None:
    rows = [row(1, 0), row(2, 0, FILTERED), row(3, 0, dead(Kind.TOO_LARGE, "large")), row(4, 0, FILTERED), row(5, 0)]
    counts = metered(rows, SECOND).counts
    assert {name: counts[name] for name in ("relayed", "filtered", "dead", "dead.too-large")} == {
        "relayed": 2, "filtered": 2, "dead": 1, "dead.too-large": 1,
    }  # fmt: skip
    assert counts["relayed_bytes"] == 2 * 8
    assert Histogram.read(END_TO_END, counts).count == 2
    assert Histogram.read(BATCH, counts).sum == 5


def test_a_transaction_without_rows_is_no_batch() -> None:
    counts = metered([], SECOND).counts
    assert counts == {"transactions": 1}


def test_a_row_from_the_future_is_not_older_than_now() -> None:
    age = Histogram.read(END_TO_END, metered([row(1, 5 * SECOND)], SECOND).counts)
    assert (age.count, age.sum) == (1, 0.0)


def test_without_the_servers_clock_no_age_is_made_up() -> None:
    counts = metered([row(1)], None).counts
    assert (counts["relayed"], Histogram.read(END_TO_END, counts).count) == (1, 0)


@given(st.integers(0, 50_000))
def test_ages_are_sampled_evenly_from_a_batch(count: int) -> None:
    found = list(shares(count))
    places = [place for place, _ in found]
    assert len(found) == min(count, 16)
    assert sum(weight for _, weight in found) == count
    assert places == sorted(set(places))
    assert all(0 <= place < count for place in places)
    # Each sample stands for about the same number of rows.
    assert all(weight <= count // 16 + 1 for _, weight in found)


def test_settling_is_timed_and_recovery_reports_relaying() -> None:
    figures = Figures()
    meter = Meter(figures)
    meter.settled(0.004)
    meter.recovered()
    assert Histogram.read(SETTLE, figures.counts).cumulative()[1:3] == [(0.002, 0), (0.005, 1)]
    assert figures.gauges == {"relaying": 1}


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (DatabaseLost("gone"), {"errors.database_lost": 1}),
        (Superseded("newer"), {"errors.superseded": 1}),
        (ZeroDivisionError(), {"errors.unexpected": 1}),
    ],
)
def test_an_error_that_ends_an_attempt_is_counted(error: Exception, counted: dict[str, int]) -> None:
    @counting_errors
    def publish(shard: Figures, config: dict[str, Any]) -> None:
        raise error

    figures = Figures()
    with pytest.raises(type(error)):
        publish(figures, {})
    assert figures.counts == counted


def test_a_producer_that_the_broker_stopped_is_a_fence() -> None:
    @counting_errors
    def publish(_: Figures) -> None:
        raise ProducerProblem("commit: fenced") from KafkaException(KafkaError(KafkaError._FENCED))

    figures = Figures()
    with pytest.raises(ProducerProblem):
        publish(figures)
    assert figures.counts == {"errors.producer_problem": 1, "fences.broker": 1}


def stored(number: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> Any:
    names, contents = [name for name, _ in headers], [content for _, content in headers]
    return (number, number * SECOND, "t", key, value, names, contents, None, None)


STORED = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=40),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


@given(STORED, st.integers(0, 39), st.integers(0, 40))
def test_bytes_of_columns_are_those_of_their_rows(rows: list[Any], start: int, cut: int) -> None:
    batch = batch_of([stored(number, *each) for number, each in enumerate(rows)])
    # A slice of a batch shares its buffers.
    batch = batch.slice(min(start, len(rows) - 1))
    together = column_rows(batch)
    assert together is not None
    assert together.size == RowList(list(together)).size == rows_of(batch).size
    assert together[:cut].size == RowList(list(together[:cut])).size
    assert together[:cut].size + together[cut:].size == together.size


def test_a_column_without_values_has_no_bytes() -> None:
    assert columns.size(pa.array([], pa.binary())) == 0
    assert columns.size(pa.array([None, None], pa.binary())) == 0
    assert columns.size(pa.array(["ü", None, "ab"], pa.string())) == 4


def test_the_servers_clock_tells_microseconds() -> None:
    clock = ServerClock(1_700_000_000.25, lambda: 0.5)
    assert (clock.now_us(), clock.now_ms()) == (1_700_000_000_250_000, 1_700_000_000_250)
    assert array("q", [clock.now_us()])[0] == clock.now_us()
