"""A process that asks for a group's offsets survives a restart of the broker."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.processes import environment
from tests.servers import stack_without_postgres
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin

RESTARTS = 2
ASKS = """
import signal, sys, time
from thresher.core.errors import ThresherError
from thresher.kafka.group.offsets import group_offsets

stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
config = {"bootstrap.servers": sys.argv[1]}
told = None
while not stopped:
    for number in range(20):
        try:
            group_offsets(config, f"group-{number}", "topic", [0], timeout_seconds=1)
            answer = "answered"
        except ThresherError:
            answer = "failed"
        if answer != told:
            told = answer
            print(told, flush=True)
        # A question while the broker comes back must meet a coordinator that is not ready.
        time.sleep(0.2 if answer == "answered" else 0)
"""


@pytest.fixture
def own_stack() -> Iterator[Stack]:
    with stack_without_postgres() as running:
        yield running


def test_asking_for_offsets_survives_a_coordinator_that_is_not_ready(own_stack: Stack) -> None:
    Admin(own_stack.kafka.bootstrap).create_topic("topic")
    (number,) = own_stack.kafka.nodes
    asking = subprocess.Popen(
        [sys.executable, "-c", ASKS, own_stack.kafka.bootstrap], stdout=subprocess.PIPE, env=environment()
    )
    try:
        # `in` reads lines up to the wanted one.
        assert asking.stdout is not None
        assert b"answered\n" in asking.stdout
        for _ in range(RESTARTS):
            # Long enough for the client to learn the coordinator.
            time.sleep(1.5)
            own_stack.kafka.nodes[number].kill()
            assert b"failed\n" in asking.stdout
            own_stack.kafka.start_node(number)
            assert b"answered\n" in asking.stdout
        asking.terminate()
        assert asking.wait(60) == 0, f"the process ended with {asking.returncode}"
    finally:
        asking.kill()
        asking.communicate(timeout=60)
