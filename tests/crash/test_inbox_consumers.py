"""Consumers with an inbox that are killed at any point: every message is processed once."""

import json
import signal
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from tests.crash.inbox_program import POINTS
from tests.faults.program import Program
from tests.in_process import thresher
from tests.processes import eventually
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.inbox import create_inbox
from thresher.inbox.consuming import consume
from thresher.inbox.dead import dead_messages, process_again
from thresher.inbox.stepping_over import step_over, stuck_partitions
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerRefused
from thresher.kafka.unreadable_batch import Unreadable

MESSAGES, CONSUMERS = 200, 6
# Seen: 15 s for six consumers, of which three are killed.
PATIENCE_SECONDS = 120.0
INBOX = TableName(table="thresher_inbox")


class Place:
    """A database with an inbox, a topic, and consumers of both."""

    def __init__(self, stack: Stack, dsn: str, directory: Path) -> None:
        self.dsn, self._directory = dsn, directory
        self.topic = f"inbox-{uuid.uuid4().hex[:8]}"
        self.kafka = {
            "bootstrap.servers": stack.kafka.bootstrap,
            "group.id": self.topic,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
        }
        Admin.of({"bootstrap.servers": stack.kafka.bootstrap}).create_topic(self.topic, partitions=4)
        self.processes: list[subprocess.Popen[bytes]] = []
        with psycopg.connect(dsn) as connection:
            create_inbox(connection, INBOX)
            # No unique constraint: a message that is processed twice must show.
            connection.execute("CREATE TABLE work (n int)")

    def start(self, **settings: Any) -> "subprocess.Popen[bytes]":
        given = {"dsn": self.dsn, "kafka": self.kafka, "topic": self.topic, **settings}
        program = Program(module="tests.crash.inbox_program", settings=given)
        self.processes.append(program.start(self._directory / "consumers.log"))
        return self.processes[-1]

    def send(self, numbers: range, *, times: int = 1, **more: Any) -> None:
        """Send messages, each `times` times under one id."""
        producer = Producer({"bootstrap.servers": self.kafka["bootstrap.servers"], "acks": "all"})
        for number in numbers:
            for _ in range(times):
                producer.produce(
                    self.topic, b"%d" % number, b"%d" % (number % 7), headers=[("event-id", f"m{number}")], **more
                )
            producer.poll(0)
        assert producer.flush(30) == 0

    def worked(self) -> Counter[int]:
        with psycopg.connect(self.dsn) as connection:
            return Counter(number for (number,) in connection.execute("SELECT n FROM work"))

    def said(self) -> str:
        log = (self._directory / "consumers.log").read_text(errors="replace")[-3000:]
        return f"{len(self.worked())} were processed, twice: {[n for n, c in self.worked().items() if c > 1]}\n{log}"


@pytest.fixture
def place(stack: Stack, dsn: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(stack, dsn, tmp_path)
    yield made
    for process in made.processes:
        process.terminate()
    for process in made.processes:
        process.wait(60)


def test_consumers_that_are_killed_process_each_message_once(place: Place) -> None:
    place.send(range(MESSAGES // 2), times=2)
    victims = [place.start(die=point, after=after) for after, point in zip((3, 9, 2), POINTS, strict=True)]
    for _ in range(CONSUMERS - len(victims)):
        place.start()
    place.send(range(MESSAGES // 2, MESSAGES), times=2)
    eventually(lambda: len(place.worked()) == MESSAGES, PATIENCE_SECONDS, place.said)
    # These messages come after all repeats: once they are processed, every repeat was read too.
    place.send(range(MESSAGES, MESSAGES + 40))
    eventually(lambda: len(place.worked()) == MESSAGES + 40, PATIENCE_SECONDS, place.said)
    assert set(place.worked().values()) == {1}, place.said()


@pytest.mark.parametrize("point", POINTS)
def test_the_messages_of_a_killed_consumer_are_processed_once(place: Place, point: str) -> None:
    place.send(range(30))
    # It dies at its first commit of offsets, or in the middle of a batch.
    victim = place.start(die=point, after=1 if point == "committed" else 2)
    eventually(lambda: victim.poll() is not None, PATIENCE_SECONDS, place.said)
    assert victim.poll() == -signal.SIGKILL
    place.start()
    eventually(lambda: len(place.worked()) == 30, PATIENCE_SECONDS, place.said)
    assert set(place.worked().values()) == {1}, place.said()


def test_an_unprocessable_message_is_set_aside_and_others_go_on(place: Place) -> None:
    place.start(poison=[3, 7])
    place.send(range(20))
    eventually(lambda: len(place.worked()) == 18, PATIENCE_SECONDS, place.said)
    with psycopg.connect(place.dsn) as connection:
        eventually(lambda: len(dead_messages(connection, INBOX)) == 2, PATIENCE_SECONDS, place.said)
        dead = dead_messages(connection, INBOX, context="test")
        assert {message.message_id for message in dead} == {"m3", "m7"}
        assert {(message.reason, message.attempts) for message in dead} == {("ValueError: cannot be processed", 2)}
        assert dead[0].record.headers == (("event-id", dead[0].message_id.encode()),)

        def handle(own: psycopg.Connection[Any], record: Any) -> None:
            own.execute("INSERT INTO work VALUES (%s)", [int(record.value)])

        assert process_again(connection, INBOX, dead[0], handle)
        assert not process_again(connection, INBOX, dead[0], handle), "once"
        assert len(dead_messages(connection, INBOX)) == 1
    # Both messages come again: one was processed since then, the other is still set aside.
    place.send(range(3, 4))
    place.send(range(7, 8))
    place.send(range(20, 27))
    eventually(lambda: len(place.worked()) == 26, PATIENCE_SECONDS, place.said)
    with psycopg.connect(place.dsn) as connection:
        assert len(dead_messages(connection, INBOX)) == 1, "a repeat is not set aside again"


def test_sessions_ended_by_the_database_lose_no_message(place: Place) -> None:
    place.start()
    place.send(range(50))
    eventually(lambda: len(place.worked()) == 50, PATIENCE_SECONDS, place.said)
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
    place.send(range(50, 100))
    eventually(lambda: len(place.worked()) == 100, PATIENCE_SECONDS, place.said)
    assert set(place.worked().values()) == {1}
    with psycopg.connect(place.dsn) as connection:
        assert dead_messages(connection, INBOX) == [], "no handler was to blame"


@pytest.mark.parametrize("from_place", [True, False])
def test_records_without_ids_are_set_aside_or_known_by_place(place: Place, from_place: bool) -> None:
    producer = Producer({"bootstrap.servers": place.kafka["bootstrap.servers"]})
    producer.produce(place.topic, b"0", partition=0)
    producer.produce(place.topic, b"1", partition=0, headers=[("event-id", b"")])
    producer.produce(place.topic, b"2", partition=0, headers=[("event-id", b"m2")])
    assert producer.flush(30) == 0
    stop = threading.Event()
    found: list[int] = []

    def handle(_: psycopg.Connection[Any], record: Any) -> None:
        found.append(int(record.value))
        if found[-1] == 2:
            stop.set()

    consumer = Consumer({**place.kafka, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([place.topic])
    done = consume(consumer, lambda: psycopg.connect(place.dsn), handle, id_from_place=from_place, stop=stop.is_set)
    consumer.close()
    with psycopg.connect(place.dsn) as connection:
        dead = dead_messages(connection, INBOX)
        again: list[int] = []
        for each in dead:
            assert process_again(connection, INBOX, each, lambda _, record: again.append(int(record.value or b"")))
    if from_place:
        assert (found, done.processed, dead) == ([0, 1, 2], 3, [])
    else:
        assert (found, done.processed, done.set_aside, again) == ([2], 1, 2, [0, 1])
        assert [each.message_id for each in dead] == [f"{place.topic}/0@{offset}" for offset in (0, 1)]
        assert all("has no header event-id" in each.reason for each in dead)


@pytest.mark.parametrize("from_place", [True, False])
def test_no_producer_claims_the_place_of_a_later_record(place: Place, from_place: bool) -> None:
    producer = Producer({"bootstrap.servers": place.kafka["bootstrap.servers"]})
    for number, claimed in enumerate(("/0/2", "/0@2")):
        producer.produce(
            place.topic, b"%d" % number, partition=0, headers=[("event-id", f"{place.topic}{claimed}".encode())]
        )
    producer.produce(place.topic, b"2", partition=0)
    producer.produce(place.topic, b"3", partition=0, headers=[("event-id", b"m3")])
    assert producer.flush(30) == 0
    stop = threading.Event()
    found: list[int] = []

    def handle(_: psycopg.Connection[Any], record: Any) -> None:
        found.append(int(record.value))
        if found[-1] == 3:
            stop.set()

    consumer = Consumer({**place.kafka, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([place.topic])
    done = consume(consumer, lambda: psycopg.connect(place.dsn), handle, id_from_place=from_place, stop=stop.is_set)
    consumer.close()
    assert (done.repeated, done.set_aside) == (0, 0 if from_place else 1)
    assert found == ([0, 1, 2, 3] if from_place else [0, 1, 3])


def test_a_partition_before_an_unreadable_batch_waits_alone(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    properties = {"bootstrap.servers": place.kafka["bootstrap.servers"]}
    bomb = Producer({**properties, "compression.type": "zstd", "message.max.bytes": 100_000_000})
    bomb.produce(place.topic, bytes(20_000_000), partition=0, headers=[("event-id", b"bomb")])
    assert bomb.flush(60) == 0
    producer = Producer(properties)
    for partition in (0, 1):
        producer.produce(
            place.topic, b"%d" % partition, partition=partition, headers=[("event-id", b"m%d" % partition)]
        )
    assert producer.flush(30) == 0
    # 20 MB of zeros are decompressed up to this size only.
    small = {**place.kafka, "receive.message.max.bytes": 10_000_000, "fetch.max.bytes": 1_100_000}
    small |= {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    found: list[int] = []

    def run(stop: Callable[[], bool]) -> None:
        consumer = Consumer(small)
        consumer.subscribe([place.topic])
        consume(
            consumer,
            lambda: psycopg.connect(place.dsn),
            lambda _, record: found.append(int(record.value or b"")),
            stop=stop,
        )
        consumer.close()

    run(lambda: found == [1] and "stands still" in caplog.text)
    assert f"{place.topic}/0 stands still at offset 0: the batch cannot be decompressed" in caplog.text
    group = place.topic
    (stuck,) = stuck_partitions(small, group, [place.topic])
    assert (stuck.partition, stuck.offset, stuck.batch) == (0, 0, Unreadable(first=0, after=1))
    where = ["--bootstrap", str(place.kafka["bootstrap.servers"]), "--group", group, place.topic, "--json", "--yes"]
    sizes = ["--kafka", "receive.message.max.bytes=10000000", "--kafka", "auto.offset.reset=earliest"]
    for moved in (1, 0):
        answer = thresher(["inbox", "step-over", *where, *sizes])
        assert answer.returncode == 0, answer.stderr.decode()
        assert len(json.loads(answer.stdout)["batches"]) == moved
    with pytest.raises(BrokerRefused, match="does not stand before the batch any more"):
        step_over(small, stuck)
    run(lambda: found == [1, 0])
