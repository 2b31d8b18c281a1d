"""Trackers that are killed, stopped and superseded, and killed consumers: every message is processed in the end."""

import contextlib
import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kill_order import KillOrder, kill_order
from tests.faults.mix.signals import stopped
from tests.faults.program import Program
from tests.processes import eventually, marked
from tests.queue.topics import QueueTopics
from tests.tracker.crash_hook import HOOK
from tests.tracker.tracked import ALONE, end, figure, redelivered, start, tracked, tracker_of, write
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.stack import Stack
from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue import Message, MessageId, QueueService
from thresher.queue.wire.marker import MarkerType, encode
from thresher.service.health import Role
from thresher.spark.session.session import Session

MESSAGES = 30
# Seen: 8 s for a tracker to start; 15 s on a busy machine, with a transaction to time out.
PATIENCE_SECONDS = 90.0
MARK = "THRESHER_TRACKER_TEST"


class Trackers:
    """Tracker programs of one pair of topics, and an order to kill a part of one of them."""

    def __init__(self, topics: QueueTopics, directory: Path, order: KillOrder) -> None:
        self.topics, self.order, self._directory = topics, order, directory
        self.processes: list[Any] = []

    def start(self, *, who: str | None = None, point: str = "", **section: Any) -> Any:
        """Start a program; `who` is the part of it that is killed at a crash point."""
        number = len(self.processes)
        keys = self.topics.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        keys["redelivery-tracker"] = {**ALONE, **section}
        settings: dict[str, Any] = {"keys": keys, "hook": None if who is None else HOOK}
        variables = {MARK: f"{self._directory}/{number}"}
        program = Program(module="tests.tracker.program", settings=settings, variables=variables)
        process = program.start(self._directory / f"tracker-{number}.log")
        self.processes.append(process)
        if who is not None:
            self.order.give(point, who, driver=process.pid)
        return process

    def end(self) -> None:
        """End all trackers, and check that none of their processes is left."""
        for process in self.processes:
            process.terminate()
        for number, process in enumerate(self.processes):
            process.wait(60)
            eventually(lambda left=number: not self.tree(left), PATIENCE_SECONDS, self.said)  # type: ignore[misc]

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

    def await_counts(self, wanted: Mapping[bytes, int]) -> None:
        eventually(lambda: self.counts() == wanted, PATIENCE_SECONDS, self.said)


@pytest.fixture
def trackers(stack: Stack, spark: Session, tmp_path: Path) -> Iterator[Trackers]:
    with kill_order() as order:
        made = Trackers(QueueTopics(stack.kafka.bootstrap), tmp_path, order)
        yield made
        made.end()


ALL = {b"%d" % number: 1 for number in range(MESSAGES)}


def await_each_once(trackers: Trackers) -> None:
    """Wait until the tracker that lives has redelivered a later message, and check that each message came once."""
    write(trackers.topics, start(1_000, 100))
    eventually(lambda: trackers.counts()[b"1000"], PATIENCE_SECONDS, trackers.said)
    assert trackers.counts() == {**ALL, b"1000": 1}, trackers.said()
    assert {record.delivery_count for record in redelivered(trackers.topics)} == {2}


@pytest.mark.parametrize("point", ["before-begin", "flushed", "before-commit", "committed"])
def test_a_killed_worker_redelivers_each_message_once(trackers: Trackers, point: str) -> None:
    assert CrashPoint(point)
    write(trackers.topics, *(start(number, 500) for number in range(MESSAGES)))
    trackers.order.give(point, "worker")
    # The engine replaces a killed worker.
    with tracked(trackers.topics, hook=HOOK):
        eventually(lambda: trackers.order.is_done, PATIENCE_SECONDS, trackers.said)
        await_each_once(trackers)


def test_contents_on_disk_are_redelivered_after_a_kill(trackers: Trackers) -> None:
    payloads = [random.Random(number).randbytes(60_000) for number in range(700)]
    write(trackers.topics, *(start(number, 500, value=payload) for number, payload in enumerate(payloads)))
    trackers.order.give("flushed", "worker")
    # An eighth of the memory is room for 560 of them.
    with tracked(trackers.topics, hook=HOOK, memory_mb=256) as tracker:
        eventually(lambda: trackers.order.is_done, PATIENCE_SECONDS)
        eventually(lambda: len(redelivered(trackers.topics)) >= len(payloads), PATIENCE_SECONDS)
        eventually(lambda: figure(tracker, "in_progress") == 0, PATIENCE_SECONDS)
        assert figure(tracker, "spilled_bytes") > 0
        assert trackers.counts() == dict.fromkeys(payloads, 1)


def test_a_tracker_that_is_killed_redelivers_each_message_once(trackers: Trackers) -> None:
    write(trackers.topics, *(start(number, 500) for number in range(MESSAGES)))
    for who, point in (("jvm", CrashPoint.FLUSHED), ("driver", CrashPoint.BEFORE_COMMIT)):
        victim = trackers.start(who=who, point=point)
        eventually(lambda: trackers.order.is_done, PATIENCE_SECONDS, trackers.said)
        # After a killed JVM or driver, a supervisor starts the program again: here, the test.
        eventually(lambda ended=victim: ended.poll() is not None, PATIENCE_SECONDS, trackers.said)  # type: ignore[misc]
        assert trackers.counts() == {}, "no transaction was committed"
    with tracked(trackers.topics):
        await_each_once(trackers)


def test_a_stopped_and_superseded_tracker_ends_and_repeats_nothing(trackers: Trackers) -> None:
    topics = trackers.topics
    older = trackers.start()
    eventually(lambda: trackers.is_tracking(0), PATIENCE_SECONDS, trackers.said)
    write(topics, *(start(number, 3_000) for number in range(MESSAGES)))
    victims = trackers.tree(0)
    assert len(victims) >= 3
    with contextlib.ExitStack() as newer:
        with stopped(victims):
            newer.enter_context(tracked(topics, shards=2))
            trackers.await_counts(ALL)
        write(topics, start(100, 200), start(101, 60_000), end(101))
        eventually(lambda: older.poll() is not None, PATIENCE_SECONDS, trackers.said)
        assert older.poll() == 3, trackers.said()
        trackers.await_counts({**ALL, b"100": 1})


def test_a_standby_takes_over_from_a_leader_that_is_killed(
    trackers: Trackers, caplog: pytest.LogCaptureFixture
) -> None:
    leader = trackers.start(election="neli")
    eventually(lambda: trackers.is_tracking(0), PATIENCE_SECONDS, trackers.said)
    with caplog.at_level(logging.INFO, "thresher"), tracker_of(trackers.topics, election="neli") as standby:
        eventually(lambda: "Spark is ready" in caplog.text, PATIENCE_SECONDS, trackers.said)
        assert standby.role is Role.STANDBY
        write(trackers.topics, *(start(number, 4_000) for number in range(MESSAGES)))
        leader.kill()
        eventually(lambda: figure(standby, "tracking"), PATIENCE_SECONDS, trackers.said)
        trackers.await_counts(ALL)


# Before and after a hand-off is committed, and after an ack. The other points of a consumer look the same to a tracker.
@pytest.mark.parametrize("point", ["started", "committed", "acked"])
def test_messages_of_a_killed_consumer_are_all_processed(
    stack: Stack, spark: Session, tmp_path: Path, point: str
) -> None:
    topics = QueueTopics(stack.kafka.bootstrap, consumer_receive_buffer_capacity=5, redelivery_timeout=1_500)
    with tracked(topics), QueueService(topics.config) as service:
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
    assert processed == set(sent.values())


def test_a_consumers_open_transaction_causes_no_false_redelivery(trackers: Trackers) -> None:
    topics = trackers.topics
    with tracked(topics):
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
        trackers.await_counts({b"2": 1})
        write(topics, start(4, 100))
        trackers.await_counts({b"2": 1, b"4": 1})
        hanging.discard()


def test_a_broker_restart_costs_only_time(proxied: tuple[Stack, int], spark: Session) -> None:
    stack, _ = proxied
    topics = QueueTopics(
        stack.kafka.bootstrap, redelivery_timeout=4_000, consumer={"session.timeout.ms": 6_000}, partitions=2
    )
    with tracked(topics), QueueService(topics.config) as service:
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
        assert (again.payload, again.delivery_count) == (b"3", 2)
        again.ack(sync=True)
        assert redelivered_after(topics, sent) == {b"3"}


def redelivered_after(topics: QueueTopics, sent: Mapping[MessageId, bytes]) -> set[bytes]:
    """The payloads of redelivered messages: those in the message topic that the test did not send."""
    return {record.payload for record in redelivered(topics) if record.message_id not in sent}
