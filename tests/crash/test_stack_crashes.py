"""Whatever dies, and however, no server stays behind that nobody owns, and no data goes that was to be kept.

Bounds are five times what was seen, plus 5 s: everything here was over within a second.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.processes import alive, descendants, environment, eventually, open_directory
from thresher.devstack.kept import KeptStack, Spec
from thresher.devstack.server import Server

GONE_SECONDS = 10.0
OWNER = """
import json, sys, time
from thresher.devstack.stack import Stack
with Stack() as stack:
    print(json.dumps({"directory": str(stack.directory), "pids": [server.pid for server in stack.servers]}), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = open_directory()
    monkeypatch.setenv("THRESHER_STATE", str(directory))
    yield directory
    KeptStack("crash").down(discard=True)
    shutil.rmtree(directory)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_throwaway_stack_is_gone_after_its_owner_died(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment()) as owner:
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        everybody = descendants(owner.pid) | set(told["pids"])
        assert all(alive(pid) for pid in told["pids"])
        owner.send_signal(number)
    eventually(lambda: not any(map(alive, everybody)), GONE_SECONDS)
    eventually(lambda: not Path(told["directory"]).exists(), GONE_SECONDS)


def test_a_stack_is_gone_although_a_forked_child_of_its_owner_lives_on() -> None:
    # The child holds the owner's ends of all pipes open: only the change of parent tells.
    script = OWNER.replace("time.sleep(600)", "import os\n    if os.fork() == 0: time.sleep(30)\n    time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment()) as owner:
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        eventually(lambda: len(descendants(owner.pid)) >= 5, 10)
        children = descendants(owner.pid)
        owner.kill()
    eventually(lambda: not any(map(alive, told["pids"])), GONE_SECONDS)
    for child in children:
        if alive(child):
            os.kill(child, signal.SIGKILL)


def test_a_server_ends_with_its_keeper(tmp_path: Path) -> None:
    server = Server("sleeper", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    server.start(["sleep", "600"])
    pid = server.pid
    (keeper,) = (child for child in descendants(os.getpid()) if pid in descendants(child))
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not alive(pid), GONE_SECONDS)
    assert not server.running
    server.stop()


def test_a_server_that_ignores_its_stop_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    server = Server("stubborn", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    server.start(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    pid = server.pid
    server.stop(grace_seconds=0.5)
    assert not alive(pid)


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    server = Server("paused", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    server.start(["sleep", "600"])
    pid = server.pid
    server.send(signal.SIGSTOP)
    server.stop()
    assert not alive(pid)


def test_a_kept_stack_whose_host_was_killed_leaves_no_server_and_all_data(state: Path) -> None:
    stack = KeptStack("crash")
    endpoints = stack.up(Spec())
    with psycopg.connect(endpoints.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(endpoints.processes["host"], signal.SIGKILL)
    eventually(lambda: not any(map(alive, endpoints.processes.values())), GONE_SECONDS)
    assert not stack.running
    assert stack.endpoints() is None
    again = stack.up(Spec())
    with psycopg.connect(again.dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
