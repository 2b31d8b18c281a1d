"""`thresher queue track` and `thresher queue dead`: an operator's day with the tracker, from a shell."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.in_process import thresher as in_process
from tests.processes import environment, eventually
from tests.queue.topics import QueueTopics
from tests.tracker.tracked import keep_alive, redelivered, start, write
from thresher.devstack import ports
from thresher.devstack.stack import Stack

PATIENCE_SECONDS = 90.0


@pytest.fixture
def topics(stack: Stack) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap)


@pytest.fixture
def file(topics: QueueTopics, tmp_path: Path) -> Path:
    path = tmp_path / "queues.yaml"
    path.write_text(yaml.safe_dump(topics.config.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    return path


class Answer(NamedTuple):
    """A command's output and exit code."""

    returncode: int
    stdout: str
    stderr: str


def thresher(*arguments: str) -> Answer:
    done = in_process(arguments)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def asked(*arguments: str) -> Any:
    answer = thresher(*arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def answered(answer: bytes, *arguments: str) -> tuple[int, str]:
    """Run a command on a terminal and answer its question; return its exit code and output."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        done = subprocess.run(
            [sys.executable, "-m", "thresher", *arguments],
            stdin=theirs, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=environment(),
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr
    finally:
        os.close(ours)
        os.close(theirs)


def test_an_operators_day_with_the_tracker(topics: QueueTopics, file: Path) -> None:
    at = f"127.0.0.1:{ports.free_port()}"
    write(
        topics,
        b"no marker",
        start(1, 200),
        start(2, 60_000, value=b"rejected"),
        keep_alive(2, 0, reject_reason="no such customer"),
        start(3, 60_000, value=b"also"),
        keep_alive(3, 0, reject_reason="neither"),
    )
    command = [
        sys.executable,
        "-m",
        "thresher",
        "queue",
        "track",
        "-c",
        str(file),
        "--status",
        at,
        "--election",
        "none",
    ]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            eventually(lambda: [record.payload for record in redelivered(topics)] == [b"1"], PATIENCE_SECONDS)

            def told() -> bool:
                # Figures come with the shards' heartbeats.
                page = asked("status", "--at", at)
                return (page["ready"], page["dead"], page["redelivered"]) == (True, 2, 1)

            eventually(told, PATIENCE_SECONDS)
            page = asked("status", "--at", at)
            assert page["marker_topic"] == topics.config.marker_topic
            assert page["queues"] == {"orders": {"redelivered": 1, "dead": 2}}
            (malformed,) = page["malformed_markers"]
            assert "-0: 9 bytes are not a marker: " in malformed
            shown = thresher("status", "--at", at)
            assert shown.returncode == 0
            assert "redelivered 1, dead 2" in shown.stdout
        finally:
            process.send_signal(signal.SIGTERM)
            said, logged = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert f"of {topics.config.marker_topic} is no marker, and was passed over" in logged.decode()
    assert said.decode().splitlines()[-1] == "stopped; 1 message redelivered"
    dead = ("queue", "dead")
    letters = asked(*dead, "list", "-c", str(file))["letters"]
    assert sorted((each["id"], each["queue"], each["reason"]) for each in letters) == [
        ("0-2", "orders", "no such customer"),
        ("0-3", "orders", "neither"),
    ]
    assert asked(*dead, "show", "0-2", "-c", str(file))["payload"] == "rejected"
    assert asked(*dead, "replay", "0-2", "-c", str(file)) == {"messages": 1}
    for chosen in (["--all"], ["--queue", "orders"]):
        code, heard = answered(b"n\n", *dead, "drop", *chosen, "-c", str(file))
        assert (code, "drop 1 dead letter, whose message was not processed, for good?" in heard) == (1, True), heard
    assert len(asked(*dead, "list", "-c", str(file))["letters"]) == 1
    code, heard = answered(b"y\n", *dead, "drop", "--all", "-c", str(file))
    assert (code, "1 dead letter was dropped" in heard) == (0, True), heard
    assert asked(*dead, "drop", "--queue", "orders", "--yes", "-c", str(file)) == {"messages": 0}
    assert asked(*dead, "list", "-c", str(file)) == {"letters": [], "more": False}
    assert sorted(record.payload for record in redelivered(topics)) == [b"1", b"rejected"]
    for arguments, why in (
        ((*dead, "replay", "-c", str(file)), "no messages were selected: give ids, --queue or --all"),
        ((*dead, "drop", "9-9", "-c", str(file)), "no dead letters: 9-9; nothing was changed"),
        ((*dead, "show", "9-9", "-c", str(file)), "no message 9-9 is a dead letter"),
    ):
        refused = thresher(*arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert why in refused.stderr


def test_a_delayed_message_has_an_id_and_its_own_count(topics: QueueTopics, file: Path) -> None:
    sent = thresher("queue", "send", "orders", "later", "--delay", "600", "-c", str(file))
    assert sent.returncode == 0
    assert sent.stdout.startswith("d-"), "no option, and no place in the message topic"
    (stats,) = asked("queue", "stats", "orders", "-c", str(file))["queues"]
    assert (stats["in_progress"], stats["delayed"]) == (0, 1)
    assert redelivered(topics) == []


def test_a_configuration_that_cannot_work_starts_nothing(file: Path) -> None:
    keys = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**keys, "redelivery_tracker": {"election": "lease", "shrads": 2}}))
    refused = thresher("queue", "track", "-c", str(file))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "redelivery-tracker.election: a lease is a row in a database" in refused.stderr
    assert "redelivery-tracker.shrads: there is no such key, did you mean 'shards'?" in refused.stderr
