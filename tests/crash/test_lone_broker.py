"""A broker that is alone is paused until it is fenced: it then names no broker, and no partition has a leader."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.processes import PYTHON_PATH, ROOT
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

# The broker is fenced after this time without a heartbeat.
_FENCED_SECONDS = 2
_PAUSES = 2


@pytest.fixture(scope="module")
def lone() -> Iterator[Stack]:
    fencing = {
        "broker.session.timeout.ms": str(1000 * _FENCED_SECONDS),
        "broker.heartbeat.interval.ms": "400",
    }
    with Stack(kafka=KafkaOptions(properties=fencing)) as running:
        yield running


def test_no_client_dies_or_sticks_when_a_lone_broker_was_fenced(lone: Stack) -> None:
    Admin(lone.kafka.bootstrap).create_topic("lone", partitions=2)
    (node,) = lone.kafka.nodes.values()
    command = [sys.executable, "-m", "tests.crash.broker_clients_program", lone.kafka.bootstrap, "lone"]
    with subprocess.Popen(
        command, cwd=ROOT, env={"PYTHONPATH": PYTHON_PATH}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as clients:
        try:
            _goes_on(clients)
            for _ in range(_PAUSES):
                node.send(signal.SIGSTOP)
                time.sleep(_FENCED_SECONDS + 1.5)
                node.send(signal.SIGCONT)
                _goes_on(clients)
        finally:
            clients.kill()


def _goes_on(clients: "subprocess.Popen[str]") -> None:
    """Return once each client has achieved something after this call."""
    before, deadline = _done(clients), time.monotonic() + 90.0
    while True:
        now = _done(clients)
        waiting = [each for each in ("asked", "sent", "read") if now.get(each, 0) <= before.get(each, 0) + 1]
        if not waiting:
            return
        assert time.monotonic() < deadline, f"{waiting} did not go on"
        time.sleep(0.1)


def _done(clients: "subprocess.Popen[str]") -> dict[str, int]:
    assert clients.stdin is not None
    assert clients.stdout is not None
    try:
        clients.stdin.write("\n")
        clients.stdin.flush()
    except BrokenPipeError:
        pytest.fail(f"the process has died: {clients.wait()}")
    answer = clients.stdout.readline()
    assert answer, f"the process has died: {clients.wait()}"
    return dict(json.loads(answer))
