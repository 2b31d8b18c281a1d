"""The topics of queues: creates missing ones, and checks existing ones.

| topic | partitions | configuration |
| --- | --- | --- |
| messages | as requested | retention by time; records up to the largest message |
| markers | as requested | LogAppendTime: the tracker's clock; retention by time; records larger than messages |
| `<markers>.queues` | as the markers | compacted: where each queue's group began |
| `<messages>.dead` | as the messages | compacted: a dead letter stays until it is replayed or dropped; larger records |
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.problem import broker_problem
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.topic_advice import USUAL_BATCH_BYTES, Advice, TopicUse, topic_advice
from thresher.queue.configuration import QueueConfig
from thresher.queue.problem import TopicsUnsuitable

# The overhead of a record and its batch; and the additional overhead of a Start or a dead letter.
_RECORD_BYTES, _START_BYTES = 1_024, 16_384
# How long all brokers may take to know a new topic, and how often they are asked.
_KNOWN_SECONDS, _LOOK_SECONDS = 10.0, 0.1
# The default number of partitions of messages and of markers.
_PARTITIONS = 4
# The rights that a refusal asks for: they differ from program to program.
_RIGHTS = "the rights of this program (docs/permissions.md)"
# Twice the longest delay or extension of a message.
_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS

# Topic configurations by topic name; and a problem: the topic, the reason, the setting, and the required value.
Configs = Mapping[str, Mapping[str, str]]
Problem = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTopic:
    """A topic as it should be."""

    name: str
    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as it is, including the defaults in effect."""

    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Whether a topic was created, its problems, and what else its owner may want to change."""

    name: str
    made: bool
    partitions: int
    problems: tuple[str, ...] = ()
    # What could be better, and stops nothing.
    advice: tuple[Advice, ...] = ()


def topics_of(config: QueueConfig, *, partitions: int | None, marker_partitions: int | None) -> tuple[QueueTopic, ...]:
    """Return the topics of a configuration, with the given numbers of partitions or the defaults."""
    partitions, marker_partitions = partitions or _PARTITIONS, marker_partitions or _PARTITIONS
    message_bytes = config.max_message_bytes + _RECORD_BYTES
    larger = str(message_bytes + _START_BYTES)
    by_time = {"cleanup.policy": "delete", "retention.bytes": "-1"}
    return (
        QueueTopic(
            name=config.message_topic,
            partitions=partitions,
            config={**by_time, "retention.ms": str(_WEEK_MS), "max.message.bytes": str(message_bytes)},
        ),
        QueueTopic(
            name=config.marker_topic,
            partitions=marker_partitions,
            config={
                **by_time,
                "retention.ms": str(_WEEK_MS),
                "max.message.bytes": larger,
                "message.timestamp.type": "LogAppendTime",
            },
        ),
        QueueTopic(name=config.queues_topic, partitions=marker_partitions, config={"cleanup.policy": "compact"}),
        QueueTopic(
            name=config.dead_topic,
            partitions=partitions,
            config={"cleanup.policy": "compact", "max.message.bytes": larger},
        ),
    )


def problems_of(
    config: QueueConfig, found: Mapping[str, FoundTopic], asked: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield each problem that could lose messages: the topic's name, and what to do.

    `asked` holds the requested numbers of partitions.
    """
    for name, count in asked.items():
        if (there := found[name].partitions) < count:
            yield name, f"it has {there} partitions, and {count} were requested: add partitions, or request {there}"
    configs = {name: topic.config for name, topic in found.items()}
    for name, why, setting, wanted in (
        *_size_problems(config, configs),
        *_retention_problems(config, configs),
        *_safety_problems(config, configs),
    ):
        yield name, f"{setting} is {configs[name][setting]}: {why}; set it to {wanted}"


def _size_problems(config: QueueConfig, found: Configs) -> Iterator[Problem]:
    """Yield the topics that would refuse a message, its Start or its dead letter."""
    setting = "max.message.bytes"
    largest = int(found[config.message_topic][setting])
    wanted = config.max_message_bytes + _RECORD_BYTES
    if largest < wanted:
        why = f"messages of max-message-bytes, {config.max_message_bytes}, would be refused"
        yield config.message_topic, why, setting, f"{wanted} or more, or lower max-message-bytes"
    for name, content in ((config.marker_topic, "a Start"), (config.dead_topic, "a dead letter")):
        if int(found[name][setting]) < largest + _START_BYTES:
            yield name, f"{content} holds a message and more", setting, f"{largest + _START_BYTES} or more"


def _retention_problems(config: QueueConfig, found: Configs) -> Iterator[Problem]:
    """Yield the topics that would remove a record too early."""
    for name in (config.message_topic, config.marker_topic):
        if "compact" in found[name]["cleanup.policy"]:
            why = "all records of a queue have the same key, so all but the last would be removed"
            yield name, why, "cleanup.policy", "delete"
        if int(found[name]["retention.bytes"]) >= 0:
            yield name, "a burst of records would remove records too early", "retention.bytes", "-1"
    for name, why in (
        (config.queues_topic, "its records would expire"),
        (config.dead_topic, "dead letters would expire"),
    ):
        if found[name]["cleanup.policy"] != "compact":
            yield name, why, "cleanup.policy", "compact"
    kept = {name: int(each["retention.ms"]) for name, each in found.items()}
    for name, why in (
        (config.message_topic, "messages that wait for a day would be removed unread"),
        (config.marker_topic, "Starts would be removed before their messages are redelivered"),
    ):
        if 0 <= kept[name] < _DAY_MS:
            yield name, why, "retention.ms", f"{_DAY_MS} or more"


def _safety_problems(config: QueueConfig, found: Configs) -> Iterator[Problem]:
    """Yield the topics whose timestamps or leader election are unsafe."""
    if found[config.marker_topic]["message.timestamp.type"] != "LogAppendTime":
        yield config.marker_topic, "the tracker's clock is the broker's time", "message.timestamp.type", "LogAppendTime"
    for name, each in found.items():
        if each["unclean.leader.election.enable"] == "true":
            why = "an out-of-sync replica may become leader, and the records that it lacks are lost"
            yield name, why, "unclean.leader.election.enable", "false"


def uses_of(config: QueueConfig) -> tuple[TopicUse, ...]:
    """Return how queues use their topics. Only the message topic is written to by programs that are not ours."""
    largest = config.max_message_bytes + _RECORD_BYTES
    usual = max(USUAL_BATCH_BYTES, largest)
    return (
        TopicUse(name=config.message_topic, most_bytes=usual, compressed_by_others=True),
        *(
            TopicUse(name=name, most_bytes=usual + _START_BYTES)
            for name in (config.marker_topic, config.queues_topic, config.dead_topic)
        ),
    )


def init_topics(
    config: QueueConfig, *, partitions: int | None = None, marker_partitions: int | None = None
) -> list[Judged]:
    """Create the missing topics, and check all of them. Raises `BrokerLost` or `BrokerRefused`."""
    admin = Admin.of(config.clients)
    wanted = topics_of(config, partitions=partitions, marker_partitions=marker_partitions)
    try:
        admin.require_answer()
        made = {topic.name for topic in wanted if _made(admin, topic)}
        found = {
            name: FoundTopic(partitions=facts.partitions, config=_config_of(admin, name))
            for name, facts in await_topics(admin, [topic.name for topic in wanted]).items()
        }
        advice = topic_advice(admin, uses_of(config))
    except KafkaException as error:
        raise broker_problem(
            "the topics of the queues cannot be created or checked", error.args[0], rights="Create and DescribeConfigs"
        ) from error
    asked = {config.message_topic: partitions, config.marker_topic: marker_partitions}
    problems = list(problems_of(config, found, {name: count for name, count in asked.items() if count is not None}))
    return [
        Judged(
            name=topic.name,
            made=topic.name in made,
            partitions=found[topic.name].partitions,
            problems=tuple(why for name, why in problems if name == topic.name),
            advice=tuple(each for each in advice if each.topic == topic.name),
        )
        for topic in wanted
    ]


def await_topics(admin: Admin, names: Collection[str]) -> dict[str, TopicFacts]:
    """Wait until the brokers know the topics. Raises `TopicsUnsuitable` if they do not, or `KafkaException`.

    A topic that is hidden from us is named: `BrokerRefused`.
    """
    deadline = time.monotonic() + _KNOWN_SECONDS
    while True:
        answers = admin.facts(names)
        found = {name: facts for name, facts in answers.items() if isinstance(facts, TopicFacts)}
        for name, error in answers.items():
            if isinstance(error, KafkaError) and refusal_of(error) is not Refusal.TOPIC:
                raise broker_problem(f"the topic {name} cannot be used", error, rights=_RIGHTS)
        if len(found) == len(names):
            return found
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if name not in found)
            raise TopicsUnsuitable(f"there is no topic {missing}: make it with 'thresher queue init'")
        time.sleep(_LOOK_SECONDS)


def _config_of(admin: Admin, name: str) -> dict[str, str]:
    """Return a topic's configuration. This waits, because brokers do not all know a new topic at the same time."""
    deadline = time.monotonic() + _KNOWN_SECONDS
    while True:
        try:
            return admin.topic_config(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_SECONDS)


def _made(admin: Admin, topic: QueueTopic) -> bool:
    try:
        admin.create_topic(topic.name, partitions=topic.partitions, config=topic.config)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True
