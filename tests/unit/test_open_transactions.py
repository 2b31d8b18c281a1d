"""Records that an open transaction hides are reported, from the client's statistics."""

import json

import pytest

from tests.set_clock import SetClock
from thresher.kafka.partition_ends import HIDDEN_SECONDS, OpenTransactions


def statistics(**partitions: tuple[int, int, int]) -> str:
    """Return statistics of the topic `t`: last stable offset, high watermark and the offset of the end that was met."""
    named = {
        number.removeprefix("p"): {"ls_offset": stable, "hi_offset": high, "eof_offset": met}
        for number, (stable, high, met) in partitions.items()
    }
    return json.dumps({"topics": {"t": {"partitions": {"-1": {"ls_offset": -1, "hi_offset": -1}, **named}}}})


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def reports(clock: SetClock, *seen: str, seconds: float = HIDDEN_SECONDS) -> int:
    """Return the number of reports after statistics that come `seconds` apart."""
    counted: list[None] = []
    watch = OpenTransactions("tests", lambda: counted.append(None), monotonic=clock)
    for each in seen:
        watch.take(each)
        clock.now += seconds
    return len(counted)


def test_only_a_transaction_that_stays_open_is_reported(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    open_ = statistics(p0=(5, 9, 5))
    assert reports(clock, open_) == 0
    assert reports(clock, open_, open_, seconds=HIDDEN_SECONDS / 2) == 0
    # Other transactions, one after another.
    assert reports(clock, open_, statistics(p0=(7, 9, 7)), statistics(p0=(8, 9, 8))) == 0
    # The client has not read up to it, or the partition is paused.
    assert reports(clock, *[statistics(p0=(5, 9, -1001))] * 3) == 0
    # The end of the partition, before anything was fetched, and an empty client.
    assert reports(clock, *[statistics(p0=(9, 9, 9), p1=(-1001, -1001, -1001))] * 3, "{}") == 0
    assert not caplog.records
    assert reports(clock, open_, open_) == 1
    (told,) = caplog.records
    assert (vars(told)["topic"], vars(told)["partition"], vars(told)["offset"], vars(told)["records"]) == ("t", 0, 5, 4)


def test_many_partitions_are_one_line_a_minute(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    many = statistics(**{f"p{number}": (1, 2, 1) for number in range(100)})
    assert reports(clock, many, *[many] * 4, seconds=HIDDEN_SECONDS / 2) == 200
    assert [vars(told)["partitions"] for told in caplog.records] == [100, 100]


def test_a_programs_own_statistics_are_left_alone() -> None:
    watch = OpenTransactions("tests")
    assert watch.watching({"statistics.interval.ms": 5}) == {"statistics.interval.ms": 5}
    assert set(watch.watching({"a": 1})) == {"a", "statistics.interval.ms", "stats_cb"}
