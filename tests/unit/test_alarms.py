"""Held topics, rejections and dead rows, as the driver reports them from its shards' events."""

import pytest

from thresher.capture.settings import POLICY, CaptureSettings
from thresher.capture.workload import CaptureTerm
from thresher.core.topic_name import is_topic
from thresher.db import TableName
from thresher.db.shape import Shape
from thresher.delivery.leader.dead_hint import dead_command
from thresher.delivery.leader.held_topics import HeldTopics
from thresher.tail.leader.figures import LogFigures, slot_alarms


def hold(told: HeldTopics, shard: int, *topics: str) -> None:
    told.observe(shard, "held", {"reasons": {"missing": list(topics)}, "of": len(topics)})


def test_a_lifted_topic_is_lifted_for_all_shards() -> None:
    told = HeldTopics("orders")
    for shard in (0, 1):
        hold(told, shard, "a", "b")
    told.observe(1, "lifted", {"topics": ["a"], "of": 1})
    assert told.alarms == {"b": "missing"}


def test_alarms_of_a_slot_and_of_a_capture_are_counted() -> None:
    """A name that a topic may have is counted, and shown, as a held topic's."""
    figures = LogFigures(wal_status="unreserved", retained_bytes=3)
    settings = CaptureSettings(name="c", dsn="", kafka={}, mappings=())
    capture = CaptureTerm("term", settings, POLICY, None)
    capture.observe(0, "unreadable", {"batches": {"orders/1": 7}})
    capture.observe(0, "failing", {"topics": {"orders": "no such column"}})
    for alarms in (slot_alarms(figures, "s", most_bytes=2), capture.alarms):
        assert len(alarms) == 2
        assert not any(map(is_topic, alarms)), alarms
    assert slot_alarms(LogFigures(wal_status="extended", retained_bytes=2), "s", most_bytes=2) == {}


def test_each_topic_is_logged_with_its_own_reason(caplog: pytest.LogCaptureFixture) -> None:
    told = HeldTopics("orders")
    told.observe(0, "held", {"reasons": {"b: unknown": ["b"], "a: no leader": ["a"]}, "of": 2})
    assert [each.getMessage() for each in caplog.records] == [
        "rows of topic b wait: b: unknown",
        "rows of topic a wait: a: no leader",
    ]
    assert told.alarms == {"a": "a: no leader", "b": "b: unknown"}


def test_a_restarted_shard_forgets_topics_that_it_held_alone() -> None:
    told = HeldTopics("orders")
    hold(told, 0, "a", "b")
    hold(told, 1, "b")
    told.observe(0, "relaying", {})
    assert told.alarms == {"b": "missing"}
    hold(told, 0, "a")
    assert told.alarms == {"b": "missing", "a": "missing"}


def test_rejections_are_logged_once_a_minute_per_topic(caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize(
    ("outbox", "shape", "command"),
    [
        (TableName(table="outbox"), Shape.THRESHER, "thresher dead list"),
        (
            TableName(table="my box", schema="app"),
            Shape.DEIMOS,
            "thresher dead list --outbox 'my box' --schema app --shape deimos",
        ),
    ],
)
def test_dead_rows_are_logged_with_the_command_for_them(
    outbox: TableName, shape: Shape, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = HeldTopics("orders", hint=dead_command(outbox, shape, "list"))
    told.observe(0, "dead", {"rows": 2, "first": 7, "why": "too large"})
    (record,) = caplog.records
    assert (
        record.getMessage() == f"rows set aside: 2, the first is 7: too large; '{command}' on its database shows them"
    )


def test_dead_rows_by_the_thousand_are_ten_lines_a_minute_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    told = HeldTopics("orders", monotonic=lambda: now)
    for number in range(1_000):
        told.observe(0, "dead", {"rows": 2, "first": number, "why": f"t{number} does not exist"})
    assert len(caplog.records) == 10
    now = 61.0
    told.observe(0, "lifted", {"topics": ["t"], "of": 0})
    told.observe(0, "dead", {"rows": 1, "first": 7, "why": "too large"})
    last = [record.getMessage().split(";")[0] for record in caplog.records[10:]]
    assert last == ["rows set aside: 1980 more since the last line", "rows set aside: 1, the first is 7: too large"]


def test_rejections_for_any_number_of_topics_are_remembered_in_bounded_memory() -> None:
    told = HeldTopics("orders")
    for number in range(3_000):
        told.observe(0, "rejected", {"topics": [f"t{number}"], "records": 8, "why": "too large"})
    assert len(told._said) == 1_000
