"""The rows of the permissions page are what the queues' programs need: each runs with its own rows alone."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.faults.guarded import LOGIN, Guard, acl_of
from tests.processes import eventually
from tests.queue.topics import QueueTopics
from tests.tracker.tracked import ALONE, dead_letters, start, write
from thresher.core.errors import ThresherError
from thresher.devstack.broker import CLIENTS
from thresher.devstack.stack import Stack
from thresher.queue import QueueService
from thresher.spark.session.session import Session
from thresher.tracker.dead import replay
from thresher.tracker.tracker import Tracker

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
PATIENCE_SECONDS = 90.0
_KINDS = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Create": AclOperation.CREATE,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


@pytest.fixture
def topics(stack: Stack, spark: Session) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap, partitions=1, marker_partitions=1)


@contextmanager
def granted(stack: Stack, topics: QueueTopics, queue: str, *programs: str) -> Iterator[dict[str, Any]]:
    """Grant the account the rows of these programs, and return a configuration with its credentials."""
    names = {"<messages>": topics.config.message_topic, "<markers>": topics.config.marker_topic, "<id>": queue}
    guard, bindings = Guard(stack.kafka.bootstrap), []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] not in programs:
            continue
        name = re.sub("<[a-z]+>", lambda found: names[found.group()], cells[2].strip("`"))
        pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
        bindings += [
            acl_of(_KINDS[cells[1]], name.rstrip("*"), pattern, _OPERATIONS[each.strip()], AclPermissionType.ALLOW)
            for each in cells[3].split(",")
        ]
    assert bindings, programs
    for binding in bindings:
        guard.bind(binding)
    given = topics.config.model_dump(by_alias=True, exclude_unset=True)
    try:
        yield {**given, "bootstrap-servers": stack.kafka.bootstrap_of(CLIENTS), "kafka": LOGIN}
    finally:
        for binding in bindings:
            guard.unbind(binding)


@pytest.mark.parametrize("handoff", ["exactly-once", "at-least-once"])
def test_producers_and_consumers_need_their_rows_alone(stack: Stack, topics: QueueTopics, handoff: str) -> None:
    queue = uuid.uuid4().hex[:12]
    with (
        granted(stack, topics, queue, "queue producer") as keys,
        QueueService(keys) as service,
        service.queue(queue).producer() as producer,
    ):
        producer.send(b"hello")
        with pytest.raises(ThresherError):
            producer.send(b"later", delay=1.0)
        refused = _refusal(stack, topics.config.marker_topic)
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with (
        granted(stack, topics, queue, "queue producer", "queue producer, for delays") as keys,
        QueueService(keys) as it,
    ):
        it.queue(queue).producer().send(b"later", delay=0.1)
    # A message of every kind: delivered, and too large, so that its dead letter has parts.
    big = Producer({**topics.eyes, "compression.type": "zstd", "message.max.bytes": 10_000_000})
    big.produce(topics.config.message_topic, bytes(3_000_000), queue.encode())
    assert big.flush(30) == 0
    with granted(stack, topics, queue, "queue consumer") as keys, QueueService({**keys, "handoff": handoff}) as service:
        consumer = service.queue(queue).consumer()
        (message,) = consumer.receive_batch(1, PATIENCE_SECONDS)
        message.ack(sync=True)
        eventually(lambda: len(dead_letters(topics.config)) == 1, PATIENCE_SECONDS)
        refused = _refusal(stack, topics.config.message_topic)
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with granted(stack, topics, queue, "`queue dead`", "`queue dead`, to replay", "`queue dead`, to change") as keys:
        topics.configure(topics.config.message_topic, max_message_bytes="4000000")
        from thresher.queue.configuration import configured

        assert replay(configured(keys), lambda _: True) == 1


def test_a_tracker_needs_its_rows_alone(stack: Stack, topics: QueueTopics) -> None:
    write(topics, start(1, 200))
    with (
        granted(stack, topics, "orders", "tracker", "tracker, with `election: neli`") as keys,
        Tracker({**keys, "redelivery-tracker": {**ALONE, "election": "neli"}}) as _,
    ):
        eventually(lambda: topics.ends()[0] >= 2, PATIENCE_SECONDS)


def _refusal(stack: Stack, topic: str) -> KafkaError:
    """Return the error by which a topic refuses the account's record."""
    producer = Producer({"bootstrap.servers": stack.kafka.bootstrap_of(CLIENTS), **LOGIN, "log_level": 0})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"forged", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    (error,) = errors
    assert error is not None
    return error
