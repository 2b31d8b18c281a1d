"""How metrics are derived from the driver's state, and scraped by Prometheus."""

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from thresher import __version__
from thresher.delivery.leader.server_probes import SERVERS
from thresher.delivery.shard.meter import BATCH, SETTLE
from thresher.observe.metric import MetricKind
from thresher.observe.prometheus import scrape
from thresher.observe.server import Answer
from thresher.relay.report.backlog import Backlog
from thresher.relay.report.metrics import ERROR_KINDS, FAMILIES, WORDING, readings
from thresher.service.health import Role, ServerHealth
from thresher.service.metrics import ServiceMetrics, family, working
from thresher.service.report import ServiceSnapshot
from thresher.service.wording import Wording
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import Phase

BACKLOG = Backlog(pending=5, exact=True, by_shard=(2, 3), oldest_seconds=None, dead=1, blocking=0)
RUNNING = ShardSnapshot(
    shard=0, state=Phase.RUNNING, seconds=1, attempt=1, restarts=0, host="h", pid=1, last_error=None,
    resident_bytes=1000, gauges={"relaying": 1},
)  # fmt: skip
LEADING = ServiceSnapshot(
    name="orders", role=Role.LEADING, ready=True, shards=(RUNNING,), counts={0: {"relayed": 3}, 1: {"relayed": 4}},
    driver={}, servers={"database": ServerHealth(up=True), "broker": ServerHealth(up=True)},
)  # fmt: skip


def scraped(snapshot: ServiceSnapshot, backlog: Backlog | None) -> Answer:
    service = ServiceMetrics(WORDING, ERROR_KINDS, SERVERS)
    return scrape(FAMILIES, [*service.readings(snapshot), *readings(snapshot, backlog)])


def shown(snapshot: ServiceSnapshot, backlog: Backlog | None = BACKLOG) -> dict[Any, float]:
    """Return samples by name and label values, in the order of the labels' names, without the label `relay`."""
    answer = scraped(snapshot, backlog)
    assert answer.kind.startswith("text/plain; version=0.0.4")
    assert isinstance(answer.content, bytes)
    found = {}
    for each in text_string_to_metric_families(answer.content.decode()):
        for sample in each.samples:
            assert sample.labels.pop("relay") == "orders"
            found[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = sample.value
    return found


def test_a_leader_shows_its_shards_and_pending_rows() -> None:
    samples = shown(LEADING)
    assert [samples["thresher_relayed_records_total", shard] for shard in "01"] == [3, 4]
    assert [samples["thresher_pending_records", shard] for shard in "01"] == [2, 3]
    assert (samples["thresher_leader",], samples["thresher_database_up",], samples["thresher_dead_rows",]) == (1, 1, 1)
    assert samples["thresher_oldest_pending_age_seconds",] == 0
    assert samples["thresher_build_info", __version__] == 1
    assert samples["thresher_shard_resident_bytes", "0"] == 1000


def test_counters_begin_at_zero() -> None:
    samples = shown(LEADING)
    assert samples["thresher_dead_records_total", "too-large", "1"] == 0
    assert samples["thresher_fences_total", "term"] == samples["thresher_errors_total", "database_lost"] == 0
    assert samples["thresher_takeovers_total",] == samples["thresher_publish_seconds_count",] == 0


def test_unknown_values_are_not_shown() -> None:
    lost = shown(replace(LEADING, servers={**LEADING.servers, "database": ServerHealth(up=False)}), None)
    assert (lost["thresher_database_up",], lost["thresher_broker_up",]) == (0, 1)
    standby = shown(replace(LEADING, role=Role.STANDBY, shards=()), None)
    # A standby knows too whether it reaches its servers.
    assert (standby["thresher_leader",], standby["thresher_database_up",], standby["thresher_broker_up",]) == (0, 1, 1)
    for samples in (lost, standby):
        assert not {name for name, *_ in samples} & {"thresher_pending_records", "thresher_oldest_pending_age_seconds"}
        # Counters stay.
        assert samples["thresher_relayed_records_total", "0"] == 3


def test_histograms_are_summed_over_shards() -> None:
    counts = {0: {BATCH.figures[0]: 2, BATCH.sum_figure: 2}, 1: {BATCH.figures[-1]: 1, BATCH.sum_figure: 50_000}}
    samples = shown(replace(LEADING, counts=counts))
    assert samples["thresher_batch_records_bucket", "1.0"] == 2
    assert samples["thresher_batch_records_bucket", "40000.0"] == 2
    assert samples["thresher_batch_records_bucket", "+Inf"] == samples["thresher_batch_records_count",] == 3
    assert samples["thresher_batch_records_sum",] == 50_002
    assert samples["thresher_settle_seconds_bucket", repr(SETTLE.bounds[0])] == 0


def test_errors_of_shards_and_driver_are_one_counter() -> None:
    counts = {0: {"errors.database_lost": 2, "fences.broker": 1}, 1: {"errors.database_lost": 1}}
    samples = shown(replace(LEADING, counts=counts, driver={"errors.database_lost": 4, "takeovers": 2}))
    assert samples["thresher_errors_total", "database_lost"] == 7
    assert (samples["thresher_fences_total", "broker"], samples["thresher_takeovers_total",]) == (1, 2)


def test_a_shard_that_has_not_recovered_is_not_up() -> None:
    assert working(RUNNING, WORDING)
    recovering = replace(RUNNING, gauges={})
    backing_off = replace(RUNNING, state=Phase.BACKING_OFF)
    assert not working(recovering, WORDING)
    assert not working(backing_off, WORDING)
    assert shown(replace(LEADING, shards=(recovering,)))["thresher_shard_up", "0"] == 0


def test_alarms_are_counted_apart_from_held_topics() -> None:
    alarms = {
        "a-topic": "missing",
        "the archive": "not mounted",
        "shard 3": "no slot of Spark",
        "outbox, trigger t": "new",
    }
    samples = shown(replace(LEADING, alarms=alarms))
    assert (samples["thresher_alarms",], samples["thresher_held_topics",]) == (3, 1)
    assert shown(LEADING)["thresher_alarms",] == 0


def test_a_name_with_quotes_breaks_no_scrape() -> None:
    answer = scraped(replace(LEADING, name='a"b\\c\nd'), BACKLOG)
    assert isinstance(answer.content, bytes)
    names = {
        sample.labels["relay"]
        for each in text_string_to_metric_families(answer.content.decode())
        for sample in each.samples
    }
    assert names == {'a"b\\c\nd'}


# Dashboards and alerts use these names: no metric is renamed or changes its labels.
KEPT = """
    thresher_alarms gauge relay
    thresher_archive_failures_total counter relay
    thresher_archive_success_age_seconds gauge relay
    thresher_archived_records_total counter relay
    thresher_batch_records histogram relay
    thresher_blocking_rows gauge relay
    thresher_broker_up gauge relay
    thresher_build_info gauge relay,version
    thresher_database_up gauge relay
    thresher_dead_records_total counter relay,shard,kind
    thresher_dead_rows gauge relay
    thresher_dropped_events_total counter relay,shard
    thresher_end_to_end_seconds histogram relay
    thresher_errors_total counter relay,kind
    thresher_fences_total counter relay,by
    thresher_filtered_records_total counter relay,shard
    thresher_foreign_progress_records_total counter relay,shard
    thresher_held_topics gauge relay
    thresher_in_flight_keys gauge relay,shard
    thresher_in_flight_records gauge relay,shard
    thresher_leader gauge relay
    thresher_oldest_pending_age_seconds gauge relay
    thresher_pending_exact gauge relay
    thresher_pending_records gauge relay,shard
    thresher_publish_seconds histogram relay
    thresher_ready gauge relay
    thresher_recovered_records_total counter relay,shard
    thresher_relayed_bytes_total counter relay,shard
    thresher_relayed_records_total counter relay,shard
    thresher_settle_seconds histogram relay
    thresher_shard_resident_bytes gauge relay,shard
    thresher_shard_restarts_total counter relay,shard
    thresher_shard_up gauge relay,shard
    thresher_step_age_seconds gauge relay,shard
    thresher_step_downs_total counter relay
    thresher_takeovers_total counter relay
    thresher_topic_errors_total counter relay,shard
    thresher_topic_locks_errored gauge relay,topic
    thresher_topic_locks_held gauge relay,topic
    thresher_topic_locks_lost_total counter relay,shard
    thresher_topic_oldest_age_seconds gauge relay,topic
    thresher_topic_pending_records gauge relay,topic
    thresher_topic_turns_total counter relay,shard
    thresher_transactions_total counter relay,shard
"""


def test_names_kinds_and_labels_of_metrics_stay_as_they_are() -> None:
    found = sorted((each.name, str(each.kind), ",".join(each.labels)) for each in FAMILIES)
    assert found == [tuple(line.split()) for line in KEPT.strip().splitlines()]


def test_another_pipeline_has_the_same_metrics_under_its_own_label() -> None:
    tracker = Wording(label="tracker", verb="track", doing="tracking", done="redelivered")
    ours, theirs = ServiceMetrics(WORDING).families, ServiceMetrics(tracker).families
    assert [each.name for each in theirs] == [each.name for each in ours]
    assert {each.labels[0] for each in theirs} == {"tracker"}
    assert [each.labels[1:] for each in theirs] == [each.labels[1:] for each in ours]
    assert family("tracker", MetricKind.COUNTER, "redelivered", "Help.", "shard").labels == ("tracker", "shard")
