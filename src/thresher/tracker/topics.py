"""Judges the topics that a tracker's promise rests on, before it takes over and while it leads."""

import time
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import KafkaException

from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord, EndOfPartition
from thresher.kafka.problem import broker_problem
from thresher.queue.problem import TopicsUnsuitable
from thresher.queue.topics import await_topics
from thresher.queue.wire.marker import MarkerMalformed, parse
from thresher.tracker.claims import marker_partitions, offsets_of
from thresher.tracker.settings import TrackerSettings

_LEAST_RETENTION_MS = 1_000
_LEAST_BATCH, _MOST_BATCH = 1_000, 1_000_000
# What a batch has besides its records.
_HEAD = 512
# A topic is another's if so many of its first records are no markers, and none is one. Few may be somebody's mistake.
_LEAST_STRANGE, _LOOKED_AT = 10, 100
_LOOK_SECONDS, _POLL_SECONDS = 10.0, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """For how many milliseconds markers are kept, negative: for ever; and the most bytes that all topics take."""

    retention_ms: int
    batch_bytes: int


def require_suitable(settings: TrackerSettings) -> TopicFacts:
    """Return what a tracker has to know of its topics.

    Raises `TopicsUnsuitable` where a topic is missing, or would lose markers or dead letters; `BrokerLost`.
    """
    admin = Admin.of(settings.kafka)
    try:
        await_topics(admin, [settings.message_topic, settings.marker_topic, settings.dead_topic])
        names = (settings.message_topic, settings.marker_topic, settings.dead_topic)
        messages, markers, dead = (admin.topic_config(name) for name in names)
    except KafkaException as error:
        raise broker_problem("the topics of the queues could not be judged", error.args[0]) from error
    marker_topic, dead_topic = settings.marker_topic, settings.dead_topic
    for topic, setting, given, wanted, why in (
        (marker_topic, "message.timestamp.type", markers, "LogAppendTime", "the tracker's clock is the broker's"),
        (marker_topic, "cleanup.policy", markers, "delete", "all markers of a queue but one would be removed"),
        (marker_topic, "retention.bytes", markers, "-1", "a burst would remove markers that are needed"),
        (dead_topic, "cleanup.policy", dead, "compact", "dead letters would be removed by time"),
    ):
        if given[setting] != wanted:
            raise TopicsUnsuitable(
                f"{setting} of {topic} is {given[setting]}: {why}; set it to {wanted} and see what "
                "'thresher queue init' says of the rest"
            )
    if 0 <= int(markers["retention.ms"]) < _LEAST_RETENTION_MS:
        raise TopicsUnsuitable(
            f"retention.ms of {marker_topic} is {markers['retention.ms']}: Starts would go before they can be written "
            "anew; set it to hours"
        )
    smallest = min(int(each["max.message.bytes"]) for each in (messages, markers, dead))
    return TopicFacts(
        retention_ms=int(markers["retention.ms"]), batch_bytes=max(_LEAST_BATCH, min(_MOST_BATCH, smallest - _HEAD))
    )


def require_markers(settings: TrackerSettings) -> None:
    """Raise `TopicsUnsuitable` where the marker topic holds something else, and no tracker has ever run on it.

    Only the first records are looked at. A topic that some tracker has run on is ours, whatever somebody writes to it.
    """
    partitions = marker_partitions(settings)
    if offsets_of(settings, partitions):
        return
    strange, left = Counter[int](), set(partitions)
    deadline = time.monotonic() + _LOOK_SECONDS
    with AssignedReader(settings.marker_topic, {**settings.kafka, **settings.consumer}) as reader:
        while left and time.monotonic() < deadline:
            for event in reader.poll(_POLL_SECONDS, at_most=_LOOKED_AT):
                if isinstance(event, EndOfPartition):
                    left.discard(event.partition)
                elif isinstance(event, ConsumerRecord):
                    if _is_marker(event.value or b""):
                        return
                    strange[event.partition] += 1
                    if strange[event.partition] >= _LOOKED_AT:
                        left.discard(event.partition)
    if strange.total() >= _LEAST_STRANGE:
        raise TopicsUnsuitable(
            f"{settings.marker_topic} holds records that are no markers, and none that is one: it is another topic. "
            "Give the topic that 'thresher queue init' made as marker-topic"
        )


def _is_marker(content: bytes) -> bool:
    try:
        parse(content)
    except MarkerMalformed:
        return False
    return True
