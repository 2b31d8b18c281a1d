"""Topics whose rows wait, as the driver knows them from what its shards tell."""

import pytest

from thresher.delivery.leader.held_topics import HeldTopics


def hold(told: HeldTopics, shard: int, *topics: str) -> None:
    told.observe(shard, "held", {"topics": list(topics), "of": len(topics), "why": "missing"})


def test_a_topic_that_is_there_again_is_there_for_all_shards() -> None:
    told = HeldTopics("orders")
    for shard in (0, 1):
        hold(told, shard, "a", "b")
    told.observe(1, "lifted", {"topic": "a"})
    assert told.alarms == {"b": "missing"}


def test_what_a_shard_held_before_it_started_over_is_forgotten_unless_another_holds_it_too() -> None:
    told = HeldTopics("orders")
    hold(told, 0, "a", "b")
    hold(told, 1, "b")
    told.observe(0, "relaying", {})
    assert told.alarms == {"b": "missing"}
    hold(told, 0, "a")
    assert told.alarms == {"b": "missing", "a": "missing"}


def test_rejections_are_said_once_a_minute_for_each_topic(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    told = HeldTopics("orders", monotonic=lambda: now)
    for at in (0.0, 1.0, 59.0):
        now = at
        told.observe(0, "rejected", {"topics": ["a", "b"], "records": 8, "why": "too large"})
    assert [record.getMessage() for record in caplog.records] == [
        "a transaction with 8 records was rejected, for topic a: too large",
        "a transaction with 8 records was rejected, for topic b: too large",
    ]
    now = 60.0
    told.observe(1, "rejected", {"topics": ["b"], "records": 4, "why": "too large"})
    assert caplog.records[-1].getMessage().endswith("topic b: too large (2 more since the last time)")
