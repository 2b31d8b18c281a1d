"""Checks of `thresher queue init`: a topic setting that could lose a message is a problem, with its remedy."""

from typing import Any

import pytest

from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.topics import FoundTopic, problems_of, topics_of

CONFIG: QueueConfig = configured({"bootstrap-servers": "kafka:9092", "message-topic": "m", "marker-topic": "t"})
# The defaults of a Kafka 4 broker.
DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def problems(*changes: tuple[str, str, str], partitions: int = 2, asked: int | None = None) -> list[tuple[str, str]]:
    """Return the problems of correct topics with these changes."""
    found = {
        each.name: {**DEFAULTS, **each.config} for each in topics_of(CONFIG, partitions=None, marker_partitions=None)
    }
    for topic, name, value in changes:
        found[topic][name] = value
    return list(
        problems_of(
            CONFIG,
            {topic: FoundTopic(partitions=partitions, config=config) for topic, config in found.items()},
            {} if asked is None else {CONFIG.message_topic: asked},
        )
    )


def test_topics_made_by_init_have_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("topic", "name", "value", "remedy"),
    [
        ("m", "cleanup.policy", "compact", "set it to delete"),
        ("t", "cleanup.policy", "compact,delete", "set it to delete"),
        ("m.dead", "cleanup.policy", "delete", "set it to compact"),
        ("m.dead", "cleanup.policy", "compact,delete", "set it to compact"),
        ("t.queues", "cleanup.policy", "delete", "set it to compact"),
        ("t.queues", "cleanup.policy", "compact,delete", "set it to compact"),
        ("m", "retention.bytes", "1000000000", "set it to -1"),
        ("t", "retention.bytes", "0", "set it to -1"),
        ("m", "retention.ms", "3600000", "set it to 86400000 or more"),
        ("t", "retention.ms", "86399999", "set it to 86400000 or more"),
        ("t", "message.timestamp.type", "CreateTime", "set it to LogAppendTime"),
        ("m", "max.message.bytes", "1000", "set it to 1049600 or more"),
        ("t", "max.message.bytes", "1049600", "set it to 1065984 or more"),
        ("m.dead", "max.message.bytes", "1049600", "set it to 1065984 or more"),
        *(
            (topic, "unclean.leader.election.enable", "true", "set it to false")
            for topic in ("m", "t", "t.queues", "m.dead")
        ),
    ],
)  # fmt: skip
def test_a_topic_that_could_lose_messages_is_a_problem(topic: str, name: str, value: str, remedy: str) -> None:
    ((told, why),) = [each for each in problems((topic, name, value)) if each[0] == topic]
    assert told == topic
    assert why.startswith(f"{name} is {value}: ")
    assert remedy in why


def test_fewer_partitions_than_asked_for_are_a_problem() -> None:
    ((topic, why),) = problems(partitions=2, asked=3)
    assert (topic, why) == ("m", "it has 2 partitions, and 3 were requested: add partitions, or request 2")
    assert problems(partitions=2, asked=2) == problems(partitions=2, asked=1) == problems(partitions=2) == []


def test_a_message_topic_is_judged_by_the_brokers_defaults() -> None:
    bare: dict[str, Any] = {
        name: FoundTopic(partitions=1, config=DEFAULTS) for name in ("m", "t", "t.queues", "m.dead")
    }
    told = {(topic, why.split()[0]) for topic, why in problems_of(CONFIG, bare, {})}
    assert told == {
        ("m", "max.message.bytes"), ("t", "max.message.bytes"), ("m.dead", "max.message.bytes"),
        ("t", "message.timestamp.type"), ("t.queues", "cleanup.policy"), ("m.dead", "cleanup.policy"),
    }  # fmt: skip
