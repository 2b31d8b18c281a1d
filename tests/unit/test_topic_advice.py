"""What is advised on a topic's configuration: limits in both directions, codecs, retention and replicas."""

import pytest
from confluent_kafka import KafkaError

from thresher.delivery.progress_topic.topic import progress_use
from thresher.kafka.topic_advice import NO_UNCLEAN_LEADER, TopicUse, advice_of
from thresher.queue.configuration import configured
from thresher.queue.topics import topics_of, uses_of

# A broker's defaults.
DEFAULT = {
    "max.message.bytes": "1048588",
    "compression.type": "producer",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "min.insync.replicas": "1",
    "message.timestamp.type": "CreateTime",
    "unclean.leader.election.enable": "false",
}
OURS = TopicUse(name="t", least_bytes=10_000, exact=NO_UNCLEAN_LEADER)
THEIRS = TopicUse(name="t", compressed_by_others=True, read_later=True, each_record=True)


def advised(use: TopicUse, copies: int = 1, **changes: str) -> dict[str, str]:
    """Return what to write, by setting."""
    config = {**DEFAULT, **{name.replace("_", "."): value for name, value in changes.items()}}
    return {each.setting: each.mend for each in advice_of(use, config, copies=copies)}


@pytest.mark.parametrize(
    ("use", "copies", "changes", "expected"),
    [
        (OURS, 1, {}, {}),
        (OURS, 1, {"max_message_bytes": "9999"}, {"max.message.bytes": "max.message.bytes=10000"}),
        (OURS, 1, {"max_message_bytes": "10000"}, {}),
        (OURS, 1, {"max_message_bytes": "1048589"}, {"max.message.bytes": "max.message.bytes=1048588"}),
        (OURS, 3, {}, {"min.insync.replicas": "min.insync.replicas=2"}),
        (OURS, 3, {"min_insync_replicas": "2"}, {}),
        (OURS, 3, {"min_insync_replicas": "3"}, {"min.insync.replicas": "min.insync.replicas=2"}),
        (OURS, 2, {"min_insync_replicas": "2"}, {"min.insync.replicas": "min.insync.replicas=1"}),
        (OURS, 2, {}, {}),
        (
            OURS,
            1,
            {"unclean_leader_election_enable": "true"},
            {"unclean.leader.election.enable": "unclean.leader.election.enable=false"},
        ),
        # What others' producers compress: no value is right for all, so none is named.
        (THEIRS, 1, {}, {"compression.type": ""}),
        (THEIRS, 1, {"compression_type": "lz4"}, {}),
        (THEIRS, 1, {"compression_type": "lz4", "retention_ms": "3600000"}, {"retention.ms": "retention.ms=259200000"}),
        (THEIRS, 1, {"compression_type": "lz4", "retention_ms": "-1"}, {}),
        (THEIRS, 1, {"compression_type": "lz4", "retention_bytes": "5"}, {"retention.bytes": "retention.bytes=-1"}),
        (
            THEIRS,
            1,
            {"compression_type": "lz4", "cleanup_policy": "compact", "retention_ms": "5", "retention_bytes": "5"},
            {"cleanup.policy": "cleanup.policy=delete"},
        ),
        (OURS, 1, {"cleanup_policy": "compact", "retention_ms": "5", "retention_bytes": "5"}, {}),
    ],
)
def test_each_setting_is_advised_on_where_it_matters(
    use: TopicUse, copies: int, changes: dict[str, str], expected: dict[str, str]
) -> None:
    assert advised(use, copies, **changes) == expected


def test_following_the_advice_leaves_none() -> None:
    bad = {
        **DEFAULT,
        "max.message.bytes": "5",
        "retention.ms": "5",
        "retention.bytes": "5",
        "cleanup.policy": "compact",
    }
    for use in (progress_use("p"), OURS, THEIRS):
        followed = dict(bad)
        # Twice: a policy that is changed makes other settings matter.
        for _ in range(2):
            for each in advice_of(use, followed, copies=3):
                followed |= {each.setting: each.mend.partition("=")[2]} if each.mend else {}
        assert [each.setting for each in advice_of(use, followed, copies=3) if each.mend] == []


def test_the_topics_that_we_make_need_no_advice_but_on_strangers_codecs() -> None:
    config = configured({"bootstrap-servers": "b:1", "message-topic": "m", "marker-topic": "k"})
    uses = {use.name: use for use in uses_of(config)}
    made = {topic.name: topic.config for topic in topics_of(config, partitions=None, marker_partitions=None)}
    found = {
        name: {each.setting: each.mend for each in advice_of(use, {**DEFAULT, **made[name]}, copies=1)}
        for name, use in uses.items()
    }
    assert found.pop(config.message_topic) == {"compression.type": ""}
    assert not any(found.values())


def test_a_configuration_that_is_hidden_is_no_good_one() -> None:
    (found,) = advice_of(OURS, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), copies=3)
    assert "grant DescribeConfigs" in str(found)


def test_advice_says_what_to_write() -> None:
    (found,) = advice_of(OURS, {**DEFAULT, "max.message.bytes": "5000000"}, copies=1)
    assert str(found) == (
        "t: max.message.bytes is 5000000: a batch may take 5.0 GB in each reader once it is decompressed; "
        "set max.message.bytes=1048588"
    )
    assert found.plain()["mend"] == "max.message.bytes=1048588"
