"""`thresher queue` from a shell: topics are created and checked, messages are sent, received and listed."""

import contextlib
import json
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.proxied import PROXIED
from tests.in_process import thresher
from tests.processes import environment, eventually, signal_a_thread, state_of
from tests.queue.topics import QueueTopics
from tests.servers import configure
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.queue import QueueService
from thresher.queue.wire.marker import MarkerType
from thresher.testing.proxy import Api, Drop, KafkaProxy

# Only how long a failing test waits.
PATIENCE_SECONDS = 60.0
# A short poll, because closing a consumer waits for its poll to end.
QUICK: dict[str, Any] = {"consumer-next-message-timeout": 50}


class Shell:
    """`thresher queue` with a file that names a broker and topics."""

    def __init__(self, directory: Path, keys: dict[str, Any]) -> None:
        self.keys = keys
        self._file = directory / "queues.yaml"
        self._file.write_text(json.dumps(keys))  # which is YAML too

    @classmethod
    def of(cls, topics: QueueTopics, directory: Path) -> "Shell":
        return cls(directory, topics.config.model_dump(by_alias=True, exclude_unset=True, mode="json"))

    def words(self, command: str, *arguments: str | bytes) -> list[str | bytes]:
        return ["queue", command, "-c", str(self._file), *arguments]

    @contextlib.contextmanager
    def started(self, command: str, *arguments: str | bytes) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a command in a process, which is ended with the context at the latest."""
        with subprocess.Popen(
            [sys.executable, "-m", "thresher", *self.words(command, *arguments)],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def __call__(
        self, command: str, *arguments: str | bytes, given: bytes = b"", code: int = 0
    ) -> "subprocess.CompletedProcess[bytes]":
        answer = thresher(self.words(command, *arguments), given)
        assert answer.returncode == code, answer.stdout + answer.stderr
        assert b"Traceback" not in answer.stderr, answer.stderr
        return answer

    def lines(self, command: str, *arguments: str | bytes, given: bytes = b"", code: int = 0) -> list[Any]:
        """Return the objects that a command prints with --json."""
        return [
            json.loads(line) for line in self(command, *arguments, "--json", given=given, code=code).stdout.splitlines()
        ]


def keys(stack: Stack) -> dict[str, Any]:
    name = uuid.uuid4().hex[:12]
    return {
        "bootstrap-servers": stack.kafka.bootstrap, "message-topic": f"{name}-m", "marker-topic": f"{name}-t", **QUICK,
    }  # fmt: skip


@pytest.fixture
def topics(stack: Stack) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap, **QUICK)


@pytest.fixture
def shell(topics: QueueTopics, tmp_path: Path) -> Shell:
    return Shell.of(topics, tmp_path)


def send(topics: QueueTopics, queue: str | bytes, count: int) -> None:
    with QueueService(topics.config) as service, service.queue(queue).producer() as producer:
        for number in range(count):
            producer.send_async(b"%d" % number)


def test_a_users_day(stack: Stack, tmp_path: Path) -> None:
    shell = Shell(tmp_path, keys(stack))
    missing = shell("send", "jobs", "too soon", code=4)
    assert b"make it with 'thresher queue init'" in missing.stderr
    # With one partition, messages come in the order in which they were sent.
    made = shell("init", "--partitions", "1", "--marker-partitions", "2").stdout.decode()
    assert made.count("made") == 4
    assert shell("send", "jobs", "first", "--header", "kind=new", "--header", "kind=old").stdout == b"0-0\n"
    assert shell.lines("send", "jobs", given=b"\xff\n") == [{"id": "0-1"}]
    assert shell("send", "jobs", "--lines", given=b"a\n\nb").stdout == b"0-2\n0-3\n0-4\n"
    assert shell("send", b"\xfe/%", "-", given=b"another queue's").stdout == b"0-5\n"

    first, second = shell.lines("receive", "jobs", "--max", "2")
    assert (first["id"], first["origin_id"], first["delivery_count"]) == ("0-0", "0-0", 1)
    assert (first["payload"], second["payload_base64"]) == ("first", "/wo=")
    assert first["headers"] == [{"name": "kind", "value": "new"}, {"name": "kind", "value": "old"}]
    waiting = shell.lines("peek", "jobs", "--last", "--max", "4")
    assert [(each["id"], each["payload"]) for each in waiting] == [("0-2", "a"), ("0-3", ""), ("0-4", "b")]
    shown = shell("peek", "jobs", "--all", "--max", "4").stdout.decode()
    assert re.findall(r"│ (0-\d) .* │ (yes|no) +│", shown) == [
        ("0-0", "no"),
        ("0-1", "no"),
        ("0-2", "yes"),
        ("0-3", "yes"),
    ]
    assert "kind=new kind=old" in shown

    (found,) = shell.lines("stats", "jobs", b"\xfe/%")
    assert found["queues"] == [
        {
            "queue": "jobs",
            "members": 0,
            "lag_records": 4,
            "in_progress": 0,
            "delayed": 0,
            "oldest_started_at": None,
            "problem": None,
        },
        {
            "queue_base64": "/i8l",
            "members": 0,
            "lag_records": 6,
            "in_progress": 0,
            "delayed": 0,
            "oldest_started_at": None,
            "problem": None,
        },
    ]
    assert [(topic["partitions"], topic["records"]) for topic in found["topics"]][::3] == [(1, 6), (1, 0)]
    assert shell("receive", "jobs", "--max", "3").stdout == b"a\n\nb\n"
    nothing = shell("receive", "jobs", "--timeout", "0.1", code=1)
    assert (nothing.stdout, b"nothing came in 0.1 s" in nothing.stderr) == (b"", True)


def test_every_message_that_is_started_is_printed(shell: Shell, topics: QueueTopics) -> None:
    send(topics, "jobs", 40)
    printed = shell.lines("receive", "jobs", "--max", "3")
    assert {str(each) for each in topics.started(b"jobs")} == {each["id"] for each in printed}
    assert topics.ended(b"jobs") == set(topics.started(b"jobs"))
    # Acks make room in the consumer, but it must not start more messages than were requested.
    more = shell("receive", "jobs", "--max", "9", "--max-in-progress", "2").stdout.split()
    assert (len(more), len(topics.started(b"jobs")), len(topics.ended(b"jobs"))) == (9, 12, 12)


def test_an_unacked_message_is_given_back(shell: Shell, topics: QueueTopics) -> None:
    send(topics, "jobs", 3)
    printed = shell("receive", "jobs", "--max", "2", "--no-ack").stdout.split()
    assert len(printed) == 2
    assert topics.ended(b"jobs") == set()
    given_back = [each.marker for each in topics.markers(b"jobs") if each.marker.type is MarkerType.KEEPALIVE]
    assert [(each.redeliver_after_ms, each.undelivered) for each in given_back] == [(0, False)] * 2
    # The table of all queues on this topic: no consumer, a lag of one record, two messages in progress.
    shown = shell("stats").stdout.decode()
    assert "lag: in records of all queues" in shown
    assert re.search(r"│ jobs +│ 0 +│ 1 +│ 2 +│ 0 +│ \d+ s +│", shown), shown


def test_a_signal_ends_receiving_and_keeps_its_acks(shell: Shell, topics: QueueTopics) -> None:
    send(topics, "jobs", 5)
    with shell.started("receive", "jobs", "--max", "1000", "--timeout", "100") as receiving:
        assert receiving.stdout is not None
        printed = [receiving.stdout.readline() for _ in range(5)]
        receiving.send_signal(signal.SIGTERM)
        rest, errors = receiving.communicate(timeout=PATIENCE_SECONDS)
        assert (receiving.returncode, rest, errors) == (0, b"", b"")
    assert sorted(printed) == [b"%d\n" % number for number in range(5)]
    assert len(topics.ended(b"jobs")) == 5


def test_a_sender_that_waits_for_lines_is_interrupted(shell: Shell) -> None:
    with shell.started("send", "jobs", "--lines") as sending:
        assert sending.stdin is not None
        assert sending.stdout is not None
        sending.stdin.write(b"first\n")
        sending.stdin.flush()
        assert sending.stdout.readline()
        eventually(lambda: all(state_of(sending.pid) == "S" for _ in range(5)), PATIENCE_SECONDS)
        # The kernel may deliver a signal to any thread.
        signal_a_thread(sending.pid, signal.SIGINT)
        assert sending.wait(PATIENCE_SECONDS) == 130


def test_messages_written_to_a_closed_pipe_are_not_acked(shell: Shell, topics: QueueTopics) -> None:
    send(topics, "jobs", 3)
    with shell.started("receive", "jobs", "--max", "1000", "--timeout", "100") as receiving:
        # The pipe is closed before the first line: the consumer still has to join its group.
        assert receiving.stdout is not None
        receiving.stdout.close()
        assert receiving.wait(PATIENCE_SECONDS) == 1
        assert receiving.stderr is not None
        assert b"Traceback" not in receiving.stderr.read()
    markers = [each.marker.type for each in topics.markers(b"jobs")]
    assert markers.count(MarkerType.START) >= 1
    assert markers.count(MarkerType.KEEPALIVE) == markers.count(MarkerType.START), "all are given back"
    assert markers.count(MarkerType.END) == 0


def test_an_id_is_printed_when_the_broker_has_the_message(shell: Shell, topics: QueueTopics) -> None:
    with shell.started("send", "jobs", "--lines") as sending:
        assert sending.stdin is not None
        assert sending.stdout is not None
        for count in (1, 2):
            sending.stdin.write(b"line\n")
            sending.stdin.flush()
            # Standard input stays open.
            assert select.select([sending.stdout], [], [], PATIENCE_SECONDS)[0]
            assert re.fullmatch(rb"\d+-\d+\n", sending.stdout.readline())
            assert sum(topics.ends().values()) == count
        rest, errors = sending.communicate(timeout=PATIENCE_SECONDS)
        assert (sending.returncode, rest, errors) == (0, b"", b"")


def test_lines_before_a_failing_line_are_sent(shell: Shell, topics: QueueTopics) -> None:
    given = b"".join(b"%d\n" % number for number in range(12_000))
    ids = shell("send", "jobs", "--lines", given=given).stdout.split()
    assert len(set(ids)) == 12_000
    assert sum(topics.ends().values()) == 12_000
    broken = shell(
        "send", "jobs", "--lines", "--max-message-bytes", "1000", given=b"a\n" + b"x" * 2_000 + b"\nc\n", code=2
    )
    assert len(broken.stdout.split()) == 1
    assert b"line 2: the message has 2,004 bytes" in broken.stderr
    assert b"1 message was sent" in broken.stderr
    assert sum(topics.ends().values()) == 12_001


def test_a_send_without_an_answer_is_reported_as_unknown(stack: Stack, tmp_path: Path) -> None:
    (listener,) = stack.kafka.options.listeners
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=listener.advertised_ports[0]) as proxy:
        topics = QueueTopics(proxy.address, direct=stack.kafka.bootstrap)
        shell = Shell.of(topics, tmp_path)
        proxy.on_answer(Api.PRODUCE, Drop())
        unknown = shell("send", "jobs", "hello", "--send-timeout", "1500", code=1)
    assert unknown.stdout == b""
    assert b"whether the message was sent is unknown" in unknown.stderr
    assert b"sending again may put it into the queue twice" in unknown.stderr
    assert sum(topics.ends().values()) == 1, "it is in the queue"


def test_topics_that_would_lose_messages_are_reported(stack: Stack, tmp_path: Path) -> None:
    shell = Shell(tmp_path, keys(stack))
    Admin(stack.kafka.bootstrap).create_topic(shell.keys["marker-topic"], config={"retention.bytes": "1000000"})
    (judged,) = shell.lines("init", code=4)
    (markers,) = [topic for topic in judged["topics"] if topic["name"] == shell.keys["marker-topic"]]
    assert judged["suitable"] is False
    assert [(topic["made"], topic["partitions"]) for topic in judged["topics"]] == [
        (True, 4), (False, 1), (True, 4), (True, 4),
    ]  # fmt: skip
    assert [why.partition(" ")[0] for why in markers["problems"]] == [
        "max.message.bytes", "retention.bytes", "message.timestamp.type",
    ]  # fmt: skip


def test_init_advises_on_limits_that_lose_nothing(stack: Stack, tmp_path: Path) -> None:
    shell = Shell(tmp_path, keys(stack))
    admin, messages, markers = Admin(stack.kafka.bootstrap), shell.keys["message-topic"], shell.keys["marker-topic"]
    (judged,) = shell.lines("init")
    assert {each["topic"]: each["setting"] for topic in judged["topics"] for each in topic["advice"]} == {
        messages: "compression.type"
    }
    configure(admin, messages, **{"max.message.bytes": "5000000", "compression.type": "lz4"})
    for name in (markers, f"{messages}.dead"):
        configure(admin, name, **{"max.message.bytes": "6000000"})
    (judged,) = shell.lines("init")
    found = {each["topic"]: each["mend"] for topic in judged["topics"] for each in topic["advice"]}
    larger = "max.message.bytes=1065984"
    assert found == {messages: "max.message.bytes=1049600", markers: larger, f"{messages}.dead": larger}
    told = shell("init").stderr.decode()
    assert f"advice: {messages}: max.message.bytes is 5000000: a batch may take 5.0 GB in each reader" in told


def test_one_error_message_holds_every_mistake(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"bootstrap-servers": "a b", "message-topics": "m", "kafka": {"sasl.password": "hunter2"}})
    answer = shell("send", "", "payload", "--lines", "--header", "x", "--redelivery-timeout", "1", code=2)
    for part in (
        "bootstrap-servers: ", "message-topics: there is no such key, did you mean 'message-topic'?", "marker-topic: ",
        "redelivery-timeout: ", "QUEUE: ", "--header: name=value is needed", "--lines: ",
    ):  # fmt: skip
        assert part in answer.stderr.decode()
    assert answer.stdout == b""
    assert b"hunter2" not in answer.stderr
