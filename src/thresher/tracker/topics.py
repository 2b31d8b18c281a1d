"""Checks the topics that the tracker's guarantee depends on, before it takes over and while it leads."""

import time
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord, EndOfPartition
from thresher.kafka.problem import BrokerRefused, broker_problem
from thresher.queue.problem import TopicsUnsuitable
from thresher.queue.topics import await_topics
from thresher.queue.wire.marker import MarkerMalformed, parse
from thresher.tracker.claims import marker_partitions, offsets_of
from thresher.tracker.settings import TrackerSettings

_LEAST_RETENTION_MS = 1_000
_LEAST_BATCH, _MOST_BATCH = 1_000, 1_000_000
# The overhead of a batch.
_BATCH_OVERHEAD = 512
# A topic is refused if at least this many of its first records are not markers, and none is. A few may be a mistake.
# And how many records of each partition are checked.
_LEAST_NON_MARKERS, _CHECKED_RECORDS = 10, 100
_LOOK_SECONDS, _POLL_SECONDS = 10.0, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """The retention of markers in milliseconds, negative if unlimited; and the batch size that all topics accept."""

    retention_ms: int
    batch_bytes: int


def require_suitable(settings: TrackerSettings) -> TopicFacts:
    """Return the facts about its topics that a tracker needs.

    Raises `TopicsUnsuitable` if a topic is missing, or would lose markers or dead letters; `BrokerRefused` if we may
    not write to one, or not read its configuration; `BrokerLost`.
    """
    admin = Admin.of(settings.kafka)
    try:
        names = (settings.message_topic, settings.marker_topic, settings.dead_topic)
        for name, facts in await_topics(admin, names).items():
            if not facts.writable:
                # A producer would only say so once there is something to write, and then it would retry.
                raise BrokerRefused(f"the topic {name} cannot be used: we may not write to it; grant Write on it")
        messages, markers, dead = (_config_of(name, answer) for name, answer in admin.topic_configs(names).items())
    except KafkaException as error:
        raise broker_problem("the topics of the queues could not be checked", error.args[0]) from error
    marker_topic, dead_topic = settings.marker_topic, settings.dead_topic
    for topic, setting, given, wanted, why in (
        (marker_topic, "message.timestamp.type", markers, "LogAppendTime", "the tracker's clock is the broker's time"),
        (marker_topic, "cleanup.policy", markers, "delete", "all but the last marker of a queue would be removed"),
        (marker_topic, "retention.bytes", markers, "-1", "a burst would remove markers that are needed"),
        (dead_topic, "cleanup.policy", dead, "compact", "dead letters would be removed by time"),
    ):
        if given[setting] != wanted:
            raise TopicsUnsuitable(
                f"{setting} of {topic} is {given[setting]}: {why}; set it to {wanted}, then run "
                "'thresher queue init' to check the rest"
            )
    if 0 <= int(markers["retention.ms"]) < _LEAST_RETENTION_MS:
        raise TopicsUnsuitable(
            f"retention.ms of {marker_topic} is {markers['retention.ms']}: Starts would be removed before they can "
            "be rewritten; set it to hours"
        )
    smallest = min(int(each["max.message.bytes"]) for each in (messages, markers, dead))
    return TopicFacts(
        retention_ms=int(markers["retention.ms"]),
        batch_bytes=max(_LEAST_BATCH, min(_MOST_BATCH, smallest - _BATCH_OVERHEAD)),
    )


def _config_of(name: str, answer: dict[str, str] | KafkaError) -> dict[str, str]:
    if isinstance(answer, KafkaError):
        raise broker_problem(f"the configuration of {name} could not be read", answer, rights="DescribeConfigs")
    return answer


def require_markers(settings: TrackerSettings) -> None:
    """Raise `TopicsUnsuitable` if the marker topic holds other records, and no tracker has ever run on it.

    Only the first records are checked. A topic that a tracker has run on is accepted, whatever other programs write to
    it.
    """
    partitions = marker_partitions(settings)
    if offsets_of(settings, partitions):
        return
    non_markers, left = Counter[int](), set(partitions)
    deadline = time.monotonic() + _LOOK_SECONDS
    with AssignedReader(settings.marker_topic, {**settings.kafka, **settings.consumer}) as reader:
        while left and time.monotonic() < deadline:
            for event in reader.poll(_POLL_SECONDS, at_most=_CHECKED_RECORDS):
                if isinstance(event, EndOfPartition):
                    left.discard(event.partition)
                elif isinstance(event, ConsumerRecord):
                    if _is_marker(event.value or b""):
                        return
                    non_markers[event.partition] += 1
                    if non_markers[event.partition] >= _CHECKED_RECORDS:
                        left.discard(event.partition)
    if non_markers.total() >= _LEAST_NON_MARKERS:
        raise TopicsUnsuitable(
            f"{settings.marker_topic} holds records that are not markers, and no markers: it is another topic. "
            "Set marker-topic to the topic that 'thresher queue init' created"
        )


def _is_marker(content: bytes) -> bool:
    try:
        parse(content)
    except MarkerMalformed:
        return False
    return True
