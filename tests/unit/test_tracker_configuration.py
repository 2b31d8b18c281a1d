"""The tracker takes the client's file; its own keys are the section `redelivery-tracker`."""

import json
from pathlib import Path
from typing import Any

import pytest

from thresher.config.problem import ConfigurationInvalid
from thresher.election.settings import ElectionKind
from thresher.queue.configuration import configured, load_queue_config
from thresher.queue.limits import Limit
from thresher.tracker.configuration import TrackerConfiguration, load_tracker_config, tracker_configured
from thresher.tracker.settings import owned

GIVEN: dict[str, Any] = {"bootstrap-servers": "kafka:9092", "message-topic": "messages", "marker-topic": "markers"}


def loaded(keys: dict[str, Any], tmp_path: Path, flags: dict[str, Any] | None = None, **variables: str) -> Any:
    path = tmp_path / "queues.yaml"
    path.write_text(json.dumps(keys))
    return load_tracker_config(path, flags or {}, variables)


def problems(**section: Any) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        tracker_configured(GIVEN | {"redelivery-tracker": section})
    return str(caught.value)


def test_defaults_need_nothing_but_the_clients_keys() -> None:
    found = tracker_configured(configured(GIVEN))
    settings = found.settings
    assert (settings.name, settings.dead_topic) == ("markers.tracker", "messages.dead")
    assert (settings.shards, settings.memory_bytes, settings.markers_per_commit) == (1, 2048 << 20, 1_000)
    assert (settings.limit, dict(settings.limits)) == (Limit(), {})
    assert settings.use_now_after_seconds == 0
    assert found.election.kind is ElectionKind.NELI
    assert found.policy.memory_bytes == 2 * settings.memory_bytes, "our own limit is reached first"


def test_the_groups_of_offsets_and_of_the_election_are_two() -> None:
    found = tracker_configured(GIVEN)
    assert found.election.leader_group == "markers.tracker.leader"
    assert found.settings.name != found.election.leader_group
    own = tracker_configured(GIVEN | {"redelivery-tracker": {"leader_group": "mine"}})
    assert own.election.leader_group == "mine"


@pytest.mark.parametrize("key", ["leader_topic", "leader_group"])
def test_an_election_key_without_an_election_is_refused(key: str) -> None:
    found = problems(election="none", **{key: "mine"})
    assert f"redelivery-tracker.{key}: it means nothing with 'election: none'" in found


def test_a_file_of_kafka_mq_go_is_accepted(tmp_path: Path) -> None:
    tracker = {"use-now-if-no-marker-seen": 60_000, "num-offsets-per-commit": 500}
    settings = loaded(GIVEN | {"redelivery-tracker": tracker}, tmp_path).settings
    assert (settings.use_now_after_seconds, settings.markers_per_commit) == (60.0, 500)


def test_client_and_tracker_accept_one_file(tmp_path: Path) -> None:
    tracker = {"shards": 3, "memory-mb": 512, "status": "off", "spark": {"spark.ui.enabled": "false"}}
    keys = GIVEN | {"redelivery-tracker": tracker, "ttl": 9_000, "ttl-by-queue": {"q": 5}}
    form = loaded(keys, tmp_path).form
    assert (form.shards, form.memory_mb, form.status_address) == (3, 512, None)
    assert form.spark_options.conf == {"spark.ui.enabled": "false"}
    client = load_queue_config(tmp_path / "queues.yaml", {}, {}).form
    assert client.redelivery_tracker == tracker


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    keys = GIVEN | {"redelivery-tracker": {"shards": 2, "memory_mb": 512, "election": "none"}}
    variables = {"THRESHER_SHARDS": "3", "THRESHER_MEMORY_MB": "600"}
    form = loaded(keys, tmp_path, {"shards": 4}, **variables).form
    assert (form.shards, form.memory_mb, form.election) == (4, 600, ElectionKind.NONE)


def test_limits_apply_globally_per_queue_or_per_message() -> None:
    keys = {"max-deliveries": 9, "ttl": 7_000, "max-deliveries-by-queue": {"a": 2}, "ttl-by-queue": {"b": 1_000}}
    settings = tracker_configured(GIVEN | keys).settings
    of = settings.rules(-1).limit_of
    assert of(b"a") == Limit(max_deliveries=2, ttl_ms=7_000)
    assert of(b"b") == Limit(max_deliveries=9, ttl_ms=1_000)
    assert of(b"c") == Limit(max_deliveries=9, ttl_ms=7_000)
    assert of(b"c").overridden(1, None) == Limit(max_deliveries=1, ttl_ms=7_000)


def test_starts_are_written_again_at_half_the_retention() -> None:
    settings = tracker_configured(GIVEN).settings
    assert settings.rules(604_800_000).rewrite_after_ms == 302_400_000
    assert settings.rules(-1).rewrite_after_ms > 10**11, "kept for ever"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("shards", 0, "redelivery-tracker.shards: "),
        ("memory_mb", 1, "redelivery-tracker.memory_mb: "),
        ("num-offsets-per-commit", 0, "redelivery-tracker.num-offsets-per-commit: "),
        ("use-now-if-no-marker-seen", "1s", "redelivery-tracker.use-now-if-no-marker-seen: "),
        ("num-offsets-per-comit", 1, "there is no such key, did you mean 'num-offsets-per-commit'?"),
        ("election", "lease", "a lease is a row in a database, and a tracker has none"),
        ("message-topic", "m", "redelivery-tracker.message-topic: there is no such key"),
        ("max_poll_seconds", 100, "redelivery-tracker.max_poll_seconds: it is more than heartbeat_timeout_seconds"),
    ],
)
def test_the_trackers_section_is_validated(key: str, value: object, why: str) -> None:
    assert why in problems(**{key: value})


def test_every_problem_is_in_one_message() -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        tracker_configured({"redelivery-tracker": {"shards": 0, "shrads": 1}, "max-deliveries": 0})
    for part in ("bootstrap-servers", "message-topic", "marker-topic", "shards: ", "shrads", "max-deliveries"):
        assert part in str(caught.value)


def test_shards_share_the_partitions() -> None:
    for shards in (1, 2, 3, 7):
        of = [[partition for partition in range(10) if owned(partition, shard, shards)] for shard in range(shards)]
        assert sorted(partition for each in of for partition in each) == list(range(10))


def test_a_ready_configuration_is_accepted() -> None:
    found = tracker_configured(GIVEN)
    assert isinstance(found, TrackerConfiguration)
    assert "kafka:9092" not in repr(found.settings), "the clients' properties may hold secrets"
