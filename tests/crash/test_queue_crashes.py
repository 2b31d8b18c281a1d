"""Consumers of queues that are killed, stopped and superseded: no message is lost, and none is started twice."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.program import Program
from tests.processes import eventually, is_stopped
from tests.queue.program import POINTS, receive
from tests.queue.topics import QueueTopics
from thresher.devstack.stack import Stack
from thresher.queue import MessageId, QueueService

QUEUE = b"jobs"
# Seen: 3 s for a process to join and to receive everything; 15 s on a busy machine, with a transaction to time out.
PATIENCE_SECONDS = 90.0
# The group removes a killed member after this time, the shortest that a broker allows.
QUICK = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


class Consuming:
    """Consumer programs of one queue, and the messages that they received."""

    def __init__(self, topics: QueueTopics, directory: Path) -> None:
        self.topics, self._directory = topics, directory
        self._keys = topics.config.model_dump(mode="json", by_alias=True) | {"consumer": QUICK}
        self.processes: list[Any] = []

    def start(self, **settings: Any) -> Any:
        number = len(self.processes)
        program = Program(module="tests.queue.program", settings={**self._settings(str(number)), **settings})
        process = program.start(self._directory / f"log-{number}")
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def receiving_here(self) -> Iterator[None]:
        """Receive in this process, as a program does, while the context lasts."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(receive, self._settings("here"), stop)
            try:
                yield
            finally:
                stop.set()
            done.result(PATIENCE_SECONDS)

    def _settings(self, name: str) -> dict[str, Any]:
        return {"keys": self._keys, "queue": QUEUE.decode(), "notes": str(self._directory / f"notes-{name}")}

    def is_ready(self, number: int) -> bool:
        """Return whether a program has its signal handlers: before that, a signal ends Python."""
        notes = self._directory / f"notes-{number}"
        return notes.exists() and notes.read_text().startswith("ready\n")

    def received(self) -> list[MessageId]:
        found = []
        for notes in sorted(self._directory.glob("notes-*")):
            for line in notes.read_text().splitlines():
                if line.startswith("received "):
                    partition, _, offset = line.removeprefix("received ").partition("-")
                    found.append(MessageId(int(partition), int(offset)))
        return found

    def said(self) -> str:
        """Return each program's output and notes, and the state of the group and the markers."""
        lines = [self.topics.told(QUEUE), f"received: {len(self.received())}, {len(set(self.received()))} of them once"]
        for number, process in enumerate(self.processes):
            notes, log = self._directory / f"notes-{number}", self._directory / f"log-{number}"
            last = notes.read_text().splitlines()[-3:] if notes.exists() else []
            lines.append(f"program {number}, exit code {process.poll()}, its last notes {last}:")
            lines.append(log.read_text(errors="replace")[-4000:])
        return "\n".join(lines)

    def send(self, count: int, size: int = 10) -> set[MessageId]:
        with QueueService(self.topics.config) as service:
            producer, other = service.queue(QUEUE).producer(), service.queue("another").producer()
            sent = []
            for number in range(count):
                sent.append(producer.send_async(f"{number}".encode().ljust(size, b".")))
                other.send_async(b"not ours")
            return {each.result(30) for each in sent}

    def all_passed(self) -> bool:
        return self.topics.offsets(QUEUE) == self.topics.ends() and self.topics.is_stable()

    def end(self) -> None:
        for number, process in enumerate(self.processes):
            if process.poll() is None:
                eventually(lambda started=number: self.is_ready(started), PATIENCE_SECONDS, self.said)  # type: ignore[misc]
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            eventually(lambda ended=process: ended.poll() is not None, PATIENCE_SECONDS, self.said)  # type: ignore[misc]


@pytest.fixture
def consuming(stack: Stack, tmp_path: Path) -> Iterator[Consuming]:
    # Few messages in progress, so that a program has several batches.
    topics = QueueTopics(stack.kafka.bootstrap, consumer_receive_buffer_capacity=5)
    made = Consuming(topics, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait(60)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_consumer_loses_nothing_and_starts_nothing_twice(consuming: Consuming, point: str) -> None:
    sent = consuming.send(60)
    victim = consuming.start(die=point, after=3)
    assert victim.wait(PATIENCE_SECONDS) == -signal.SIGKILL, consuming.said()
    # The victim is killed midway: some messages are left for the next consumer.
    assert not consuming.all_passed()
    eventually(consuming.topics.is_stable, PATIENCE_SECONDS)
    # Without a tracker, no consumer delivers the messages that the victim had started and not acked.
    left = _unfinished(consuming)
    with consuming.receiving_here():
        eventually(consuming.all_passed, PATIENCE_SECONDS, consuming.said)
        eventually(lambda: set(consuming.received()) >= sent - left, PATIENCE_SECONDS, consuming.said)
    assert consuming.topics.verdict(QUEUE, sent) == [], consuming.said()
    received = consuming.received()
    assert len(received) == len(set(received)), consuming.said()
    missing = sent - set(received)
    assert missing <= left
    if point == "committed":
        assert missing, "a message that the victim had started was delivered again"


@pytest.mark.parametrize("point", ["polled", "started", "offsets", "committed"])
def test_a_consumer_stopped_past_its_session_starts_nothing_twice(consuming: Consuming, point: str) -> None:
    sent = consuming.send(60)
    sleeper = consuming.start(stop=point, after=3)
    eventually(lambda: is_stopped(sleeper.pid), PATIENCE_SECONDS, consuming.said)

    def left() -> set[MessageId]:
        """The messages of a hand-off in doubt that another consumer had passed: the tracker redelivers them."""
        return _unfinished(consuming) if "a hand-off did not succeed at once" in consuming.said() else set()

    with consuming.receiving_here():
        # By now the group has removed the stopped consumer, and the broker has timed out its transaction.
        eventually(consuming.all_passed, PATIENCE_SECONDS, consuming.said)
        sleeper.send_signal(signal.SIGCONT)
        more = consuming.send(20)
        eventually(
            lambda: consuming.all_passed() and set(consuming.received()) >= more, PATIENCE_SECONDS, consuming.said
        )
        # Started messages stay with their consumer, even one that was stopped for long.
        eventually(lambda: set(consuming.received()) | left() == sent | more, PATIENCE_SECONDS, consuming.said)
    consuming.end()
    assert consuming.topics.verdict(QUEUE, sent | more) == [], consuming.said()
    received = consuming.received()
    assert len(received) == len(set(received)), consuming.said()
    assert _unfinished(consuming) == (sent | more) - set(received)


def test_consumers_that_come_and_go_share_the_messages(consuming: Consuming) -> None:
    sent = consuming.send(100)
    first = consuming.start()
    for _ in range(2):
        consuming.start()
        sent |= consuming.send(50)
    eventually(lambda: len(consuming.received()) > 20 and consuming.is_ready(0), PATIENCE_SECONDS, consuming.said)
    first.send_signal(signal.SIGTERM)
    sent |= consuming.send(100)
    eventually(consuming.all_passed, PATIENCE_SECONDS, consuming.said)
    eventually(lambda: first.poll() is not None, PATIENCE_SECONDS, consuming.said)
    assert first.returncode == 0, consuming.said()
    consuming.end()
    assert consuming.topics.verdict(QUEUE, sent) == [], consuming.said()
    received = consuming.received()
    assert len(received) == len(set(received)), consuming.said()
    # A consumer that left gave its unreceived messages back: the tracker redelivers them.
    missing = sent - set(received) - _unfinished(consuming)
    assert not missing, f"neither received nor given back: {sorted(missing)}\n{consuming.said()}"


def _unfinished(consuming: Consuming) -> set[MessageId]:
    """Messages that were started and not acked: the tracker redelivers them."""
    return set(consuming.topics.started(QUEUE)) - consuming.topics.ended(QUEUE)
