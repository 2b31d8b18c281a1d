"""Trackers that are killed, stopped and superseded, and killed consumers: every message is processed in the end."""

import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.mix.signals import stopped
from tests.faults.program import Program
from tests.processes import eventually, marked
from tests.queue.program import POINTS
from tests.queue.topics import QueueTopics
from tests.tracker.tracked import ALONE, end, redelivered, start, write
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.stack import Stack
from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue import Message, MessageId, QueueService
from thresher.queue.wire.marker import MarkerType, encode

MESSAGES = 30
# Seen: 8 s for a tracker to start; 15 s on a busy machine, with a transaction to time out.
PATIENCE_SECONDS = 90.0
MARK = "THRESHER_TRACKER_TEST"


class Trackers:
    """Tracker programs of one pair of topics."""

    def __init__(self, topics: QueueTopics, directory: Path) -> None:
        self.topics, self._directory = topics, directory
        self.processes: list[Any] = []

    def start(self, crash: dict[str, Any] | None = None, **section: Any) -> Any:
        number = len(self.processes)
        keys = self.topics.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        keys["redelivery-tracker"] = {**ALONE, **section}
        settings: dict[str, Any] = {"keys": keys}
        if crash is not None:
            settings["crash"] = {**crash, "done": str(self._directory / f"done-{number}")}
        variables = {MARK: f"{self._directory}/{number}"}
        program = Program(module="tests.tracker.program", settings=settings, variables=variables)
        process = program.start(self._directory / f"tracker-{number}.log")
        self.processes.append(process)
        return process

    def end(self) -> None:
        """End all trackers, and check that none of their processes is left."""
        for process in self.processes:
            process.terminate()
        for number, process in enumerate(self.processes):
            process.wait(60)
            eventually(lambda left=number: not self.tree(left), PATIENCE_SECONDS, self.said)  # type: ignore[misc]

    def has_crashed(self, number: int) -> bool:
        return (self._directory / f"done-{number}").exists()

    def tree(self, number: int) -> set[int]:
        """Every process of a tracker: driver, JVM, daemon and workers."""
        return set(marked(f"{MARK}={self._directory}/{number}"))

    def log(self, number: int) -> str:
        return (self._directory / f"tracker-{number}.log").read_text(errors="replace")

    def said(self) -> str:
        logs = [f"tracker {number}:\n{self.log(number)[-5000:]}" for number in range(len(self.processes))]
        return "\n".join([f"redelivered {self.counts()}", *logs])

    def is_tracking(self, number: int) -> bool:
        return "is tracking" in self.log(number)

    def counts(self) -> Counter[bytes]:
        """How often each message is in the message topic."""
        return Counter(record.payload for record in redelivered(self.topics))


@pytest.fixture
def trackers(stack: Stack, tmp_path: Path) -> Iterator[Trackers]:
    made = Trackers(QueueTopics(stack.kafka.bootstrap), tmp_path)
    yield made
    made.end()


ALL = {b"%d" % number: 1 for number in range(MESSAGES)}


@pytest.mark.parametrize(
    ("who", "point"),
    [
        *(("worker", point) for point in ("before-begin", "flushed", "before-commit", "committed")),
        ("jvm", "flushed"),
        ("driver", "before-commit"),
        ("driver", "committed"),
    ],
)
def test_a_tracker_that_is_killed_redelivers_each_message_once(trackers: Trackers, who: str, point: str) -> None:
    assert CrashPoint(point)
    topics = trackers.topics
    write(topics, *(start(number, 500) for number in range(MESSAGES)))
    victim = trackers.start({"point": point, "who": who})
    eventually(lambda: trackers.has_crashed(0), PATIENCE_SECONDS, trackers.said)
    if who != "worker":
        # The engine replaces a killed worker. After a killed driver, a supervisor starts the program again: here, the
        # test.
        eventually(lambda: victim.poll() is not None, PATIENCE_SECONDS, trackers.said)
        trackers.start()
    eventually(lambda: trackers.counts() == ALL, PATIENCE_SECONDS, trackers.said)
    time.sleep(2)
    assert trackers.counts() == ALL, trackers.said()
    assert {record.delivery_count for record in redelivered(topics)} == {2}


def test_a_stopped_and_superseded_tracker_ends_and_repeats_nothing(trackers: Trackers) -> None:
    topics = trackers.topics
    older = trackers.start()
    eventually(lambda: trackers.is_tracking(0), PATIENCE_SECONDS, trackers.said)
    write(topics, *(start(number, 3_000) for number in range(MESSAGES)))
    victims = trackers.tree(0)
    assert len(victims) >= 3
    with stopped(victims):
        trackers.start(shards=2)
        eventually(lambda: trackers.counts() == ALL, PATIENCE_SECONDS, trackers.said)
    write(topics, start(100, 200), start(101, 60_000), end(101))
    eventually(lambda: older.poll() is not None, PATIENCE_SECONDS, trackers.said)
    assert older.poll() == 3, trackers.said()
    eventually(lambda: trackers.counts() == {**ALL, b"100": 1}, PATIENCE_SECONDS, trackers.said)


def test_a_standby_takes_over_from_a_leader_that_is_killed(trackers: Trackers) -> None:
    for _ in range(2):
        trackers.start(election="neli")
    eventually(lambda: trackers.is_tracking(0) or trackers.is_tracking(1), PATIENCE_SECONDS, trackers.said)
    leader = 0 if trackers.is_tracking(0) else 1
    eventually(lambda: "Spark is ready" in trackers.log(1 - leader), PATIENCE_SECONDS, trackers.said)
    write(trackers.topics, *(start(number, 4_000) for number in range(MESSAGES)))
    trackers.processes[leader].kill()
    eventually(lambda: trackers.is_tracking(1 - leader), PATIENCE_SECONDS, trackers.said)
    eventually(lambda: trackers.counts() == ALL, PATIENCE_SECONDS, trackers.said)


@pytest.mark.parametrize("point", POINTS)
def test_messages_of_a_killed_consumer_are_all_processed(trackers: Trackers, tmp_path: Path, point: str) -> None:
    topics = QueueTopics(
        trackers.topics.config.bootstrap_servers,
        consumer_receive_buffer_capacity=5,
        redelivery_timeout=1_500,
    )
    trackers.topics = topics
    trackers.start()
    with QueueService(topics.config) as service:
        producer = service.queue("jobs").producer()
        sent = {producer.send(b"%d" % number): b"%d" % number for number in range(MESSAGES)}
        quick = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        keys = topics.config.model_dump(mode="json", by_alias=True) | {"consumer": quick}
        notes = tmp_path / "notes"
        program = Program(
            module="tests.queue.program",
            settings={"keys": keys, "queue": "jobs", "notes": str(notes), "die": point, "after": 3},
        )
        victim = program.start(tmp_path / "consumer.log")
        assert victim.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        processed: set[bytes] = set()
        noted = notes.read_text().splitlines()
        # A transaction that the victim left open hides the End markers behind it.
        eventually(topics.is_stable, PATIENCE_SECONDS)
        ended = {each.marker.message_id for each in topics.markers(b"jobs") if each.marker.type is MarkerType.END}
        processed |= {payload for id_, payload in sent.items() if id_ in ended and f"received {id_}" in noted}
        deadline = time.monotonic() + PATIENCE_SECONDS
        with service.queue("jobs").consumer() as consumer:
            while processed != set(sent.values()) and time.monotonic() < deadline:
                for message in consumer.receive_batch(10, 1.0):
                    processed.add(message.payload)
                    message.ack(sync=True)
    assert processed == set(sent.values()), trackers.said()


def test_a_consumers_open_transaction_causes_no_false_redelivery(trackers: Trackers) -> None:
    topics = trackers.topics
    trackers.start()
    eventually(lambda: trackers.is_tracking(0), PATIENCE_SECONDS, trackers.said)
    hanging = TransactionalProducer("hanging", topics.eyes)
    hanging.init(topics.config.marker_topic)
    hanging.begin()
    write(topics, start(1, 2_000), start(2, 2_000))
    partition = murmur2_partition(b"orders", 2)
    hanging.produce([(0, (topics.config.marker_topic, encode(start(3, 60_000)), b"orders", partition, 0, None))])
    assert hanging.flush() == []
    # This End is behind the open transaction: no reader sees it until the broker ends that transaction.
    write(topics, end(1))
    time.sleep(5)
    assert trackers.counts() == {}
    eventually(lambda: trackers.counts() == {b"2": 1}, PATIENCE_SECONDS, trackers.said)
    time.sleep(2)
    assert trackers.counts() == {b"2": 1}
    hanging.discard()


def test_a_broker_restart_costs_only_time(proxied: tuple[Stack, int], tmp_path: Path) -> None:
    stack, _ = proxied
    topics = QueueTopics(
        stack.kafka.bootstrap, redelivery_timeout=4_000, consumer={"session.timeout.ms": 6_000}, partitions=2
    )
    trackers = Trackers(topics, tmp_path)
    try:
        trackers.start()
        eventually(lambda: trackers.is_tracking(0), PATIENCE_SECONDS, trackers.said)
        with QueueService(topics.config) as service:
            queue = service.queue("jobs")
            sent = {queue.producer().send(b"%d" % number): b"%d" % number for number in range(10)}
            consumer = queue.consumer()
            messages: dict[bytes, Message] = {}
            while len(messages) < len(sent):
                messages |= {message.payload: message for message in consumer.receive_batch(10, 5.0)}
            (number,) = stack.kafka.nodes
            stack.kafka.nodes[number].kill()
            # Longer than the redelivery time-out, so that no KeepAlive is in time, and longer than a request waits.
            time.sleep(18)
            stack.kafka.start_node(number)
            time.sleep(8)
            assert redelivered_after(topics, sent) == set(), "a message was redelivered although its consumer lives"
            for payload, message in messages.items():
                if payload != b"3":
                    message.ack(sync=True)
            messages[b"3"].nack()
            (again,) = consumer.receive_batch(1, PATIENCE_SECONDS)
            assert (again.payload, again.delivery_count) == (b"3", 2), trackers.said()
            again.ack(sync=True)
            assert redelivered_after(topics, sent) == {b"3"}
    finally:
        trackers.end()


def redelivered_after(topics: QueueTopics, sent: Mapping[MessageId, bytes]) -> set[bytes]:
    """The payloads of redelivered messages: those in the message topic that the test did not send."""
    return {record.payload for record in redelivered(topics) if record.message_id not in sent}
