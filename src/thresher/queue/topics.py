"""The topics of queues: made as they should be, or judged.

| topic | partitions | configuration |
| --- | --- | --- |
| messages | as asked | retention by time; records up to the largest message |
| markers | as asked | LogAppendTime: the tracker's clock; retention by time; records larger than messages |
| `<markers>.queues` | as the markers | compacted: where each queue's group began |
| `<messages>.dead` | as the messages | retention by time; records larger than messages |
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.admin import Admin
from thresher.kafka.problem import broker_problem
from thresher.queue.configuration import QueueConfig
from thresher.queue.problem import TopicsUnsuitable

# A record's and a batch's own bytes; and what a Start, or a dead letter, has besides its message.
_RECORD_BYTES, _START_BYTES = 1_024, 16_384
# How long brokers may take to learn of a topic.
_KNOWN_SECONDS, _LOOK_SECONDS = 10.0, 0.1
# Twice the longest delay and the longest extension of a message.
_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS
_DEAD_MS = 4 * _WEEK_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTopic:
    """A topic, as it should be."""

    name: str
    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was made of a topic, and what is wrong with it."""

    name: str
    made: bool
    partitions: int
    problems: tuple[str, ...] = ()


def topics_of(config: QueueConfig, *, partitions: int, marker_partitions: int) -> tuple[QueueTopic, ...]:
    """Return the topics of a configuration."""
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
            config={**by_time, "retention.ms": str(_DEAD_MS), "max.message.bytes": larger},
        ),
    )


def problems_of(config: QueueConfig, found: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with topics, by the configuration that each has: its name, and what to do."""
    messages, markers = found[config.message_topic], found[config.marker_topic]
    largest, wanted = int(messages["max.message.bytes"]), config.max_message_bytes + _RECORD_BYTES
    if largest < wanted:
        yield (
            config.message_topic,
            (
                f"max.message.bytes is {largest:,}: messages of max-message-bytes, {config.max_message_bytes:,}, would "
                f"be refused; set it to {wanted:,} or more, or lower max-message-bytes"
            ),
        )
    for name, content in ((config.marker_topic, "a Start"), (config.dead_topic, "a dead letter")):
        if int(found[name]["max.message.bytes"]) < largest + _START_BYTES:
            yield (
                name,
                (
                    f"max.message.bytes is {int(found[name]['max.message.bytes']):,}: {content} holds a message and "
                    f"more; set it to {largest + _START_BYTES:,} or more"
                ),
            )
    if markers["message.timestamp.type"] != "LogAppendTime":
        yield config.marker_topic, "message.timestamp.type is not LogAppendTime: the tracker's clock is the broker's"
    for name in (config.message_topic, config.marker_topic):
        if "compact" in found[name]["cleanup.policy"]:
            yield name, "cleanup.policy has 'compact': records of one queue have one key, and all but one would go"
        if int(found[name]["retention.bytes"]) >= 0:
            yield name, "retention.bytes is set: a burst would remove what is in progress; keep records by time alone"
    kept, least = int(markers["retention.ms"]), _DAY_MS
    if 0 <= kept < least:
        yield (
            config.marker_topic,
            (
                f"retention.ms is {kept:,}: Starts would go before their messages are redelivered; set it to "
                f"{least:,} or more"
            ),
        )
    if found[config.queues_topic]["cleanup.policy"] != "compact":
        yield config.queues_topic, "cleanup.policy is not 'compact': what it notes would expire"


def init_topics(config: QueueConfig, *, partitions: int, marker_partitions: int) -> list[Judged]:
    """Make the topics that are missing, and judge all of them. Raises `BrokerLost` or `BrokerRefused`."""
    admin = Admin.of(config.clients)
    wanted = topics_of(config, partitions=partitions, marker_partitions=marker_partitions)
    try:
        admin.greet()
        made = {topic.name for topic in wanted if _made(admin, topic)}
        await_topics(admin, [topic.name for topic in wanted])
        facts = {topic.name: admin.topic(topic.name) for topic in wanted}
        found = {topic.name: _config_of(admin, topic.name) for topic in wanted}
    except KafkaException as error:
        raise broker_problem("the topics of the queues cannot be made", error.args[0]) from error
    problems = list(problems_of(config, found))
    return [
        Judged(
            name=topic.name,
            made=topic.name in made,
            partitions=fact.partitions if (fact := facts[topic.name]) is not None else 0,
            problems=tuple(why for name, why in problems if name == topic.name),
        )
        for topic in wanted
    ]


def await_topics(admin: Admin, names: Collection[str]) -> None:
    """Wait until the brokers know the topics. Raises `TopicsUnsuitable` if they do not, or `KafkaException`."""
    deadline = time.monotonic() + _KNOWN_SECONDS
    while missing := [name for name in names if admin.topic(name) is None]:
        if time.monotonic() > deadline:
            raise TopicsUnsuitable(f"there is no topic {', '.join(missing)}: make it with 'thresher queue init'")
        time.sleep(_LOOK_SECONDS)


def _config_of(admin: Admin, name: str) -> dict[str, str]:
    """Return a topic's configuration. A broker learns of a new topic later than the others."""
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
