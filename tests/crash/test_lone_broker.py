"""A broker that is alone is paused until it is fenced: it then names no broker, and no partition has a leader."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.processes import PYTHON_PATH, ROOT
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.server import Server
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

# The broker is fenced after this time without a heartbeat.
_FENCED_SECONDS = 2
_FENCED_TIMES = 2
# A heartbeat that comes before the controller has looked at its sessions keeps the broker from being fenced.
_MOST_PAUSES = 6
# A change of broker 1's registration in the metadata log: BrokerRegistrationChangeRecord, of which `fenced` is -1.
_FENCED = re.compile(rb"\x01\x11[\x00-\x03]\x00\x00\x00\x01.{8}\x01\x00\x01\xff", re.DOTALL)


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
            before = _fenced(node)
            for _ in range(_MOST_PAUSES):
                node.send(signal.SIGSTOP)
                time.sleep(_FENCED_SECONDS + 1.5)
                node.send(signal.SIGCONT)
                _goes_on(clients)
                if (times := _fenced(node) - before) >= _FENCED_TIMES:
                    break
            else:
                pytest.fail(f"the broker was fenced {times} times: this has shown nothing")
        finally:
            clients.kill()


def _fenced(node: Server) -> int:
    """Return how often the controller has fenced the broker, as its metadata log tells."""
    logs = (node.directory / "data" / "__cluster_metadata-0").glob("*.log")
    return sum(len(_FENCED.findall(each.read_bytes())) for each in logs)


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
