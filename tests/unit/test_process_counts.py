"""Counters of a process never go back across its engines."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from thresher.service.process_counts import ProcessCounts
from thresher.spark.driver.snapshot import EngineState, ShardSnapshot, Snapshot
from thresher.spark.driver.supervision import Phase


def snapshot(*counts: dict[str, Any], restarts: int = 0) -> Snapshot:
    return Snapshot(
        pipeline="p",
        state=EngineState.RUNNING,
        error=None,
        master=None,
        shards=tuple(
            ShardSnapshot(
                shard=shard, state=Phase.RUNNING, seconds=0, attempt=1, restarts=restarts, host=None, pid=None,
                last_error=None, resident_bytes=None, counts=each,
            )
            for shard, each in enumerate(counts)
        ),
    )  # fmt: skip


def relayed(process_counts: ProcessCounts) -> list[float]:
    return [counts["relayed"] for _, counts in sorted(process_counts.shards().items())]


def test_a_new_leadership_counts_on_where_the_last_one_ended() -> None:
    process_counts = ProcessCounts()
    now = snapshot({"relayed": 5}, {"relayed": 7}, restarts=2)
    process_counts.follow(lambda: now)
    now = snapshot({"relayed": 6}, {"relayed": 7}, restarts=3)
    process_counts.close()
    assert relayed(process_counts) == [6, 7]
    process_counts.follow(lambda: snapshot({"relayed": 1}, {"relayed": 0}, restarts=1))
    assert relayed(process_counts) == [7, 7]
    assert [counts["restarts"] for counts in process_counts.shards().values()] == [4, 4]
    # A second close counts nothing twice.
    process_counts.close()
    process_counts.close()
    assert relayed(process_counts) == [7, 7]


def test_a_leadership_that_follows_without_a_close_is_added_too() -> None:
    process_counts = ProcessCounts()
    process_counts.follow(lambda: snapshot({"relayed": 5}))
    process_counts.follow(lambda: snapshot({"relayed": 1}))
    assert relayed(process_counts) == [6]


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=5), max_size=6))
def test_no_figure_goes_back(leaderships: list[list[int]]) -> None:
    process_counts = ProcessCounts()
    shown = [0.0]
    for steps in leaderships:
        now = [0]
        process_counts.follow(lambda now=now: snapshot({"relayed": now[0]}))  # type: ignore[misc]
        for step in steps:
            now[0] += step
            shown.extend(relayed(process_counts))
        process_counts.close()
        shown.extend(relayed(process_counts))
    assert shown == sorted(shown)
    assert shown[-1] == sum(map(sum, leaderships))


def test_the_driver_counts_too() -> None:
    process_counts = ProcessCounts()
    process_counts.count("takeovers")
    process_counts.count("errors.database_lost", 2)
    process_counts.count("takeovers")
    assert process_counts.driver() == {"takeovers": 2, "errors.database_lost": 2}
    assert process_counts.shards() == {}
