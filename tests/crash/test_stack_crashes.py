"""Any process may die in any way: no server runs on without an owner, and kept data is not lost.

Time limits allow for a slow machine that stalls. On a fast one, every wait here ended within a second.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.processes import alive, descendants, environment, eventually, open_directory
from thresher.devstack.named_stack import NamedStack, Spec
from thresher.devstack.server import Server
from thresher.devstack.stack import Stack

GONE_SECONDS = 60.0
OWNER = """
import json, sys, time
from thresher.devstack.stack import Stack
with Stack() as stack:
    print(json.dumps({"directory": str(stack.directory), "pids": [server.pid for server in stack.servers]}), flush=True)
    time.sleep(600)
"""
# The same with Postgres alone, which starts much sooner than Kafka.
POSTGRES_OWNER = """
import json, time
from thresher.devstack.stack import Stack
stack = Stack()
stack.postgres.prepare()
stack.postgres.start()
print(json.dumps({"directory": str(stack.directory), "pids": [stack.postgres.server.pid]}), flush=True)
time.sleep(600)
"""
# Interrupts itself as Ctrl-C does, after its host process has started and long before its servers have.
INTERRUPTED = """
import os, signal, sys, time
from thresher.cli.app import main
from thresher.devstack.named_stack import NamedStack
endpoints = NamedStack.endpoints
def interrupted(stack):
    NamedStack.endpoints = endpoints
    while not stack.host_file.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    return endpoints(stack)
NamedStack.endpoints = interrupted
sys.argv = ["thresher", "stack", "up", "--name", "crash"]
main()
"""


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = open_directory()
    monkeypatch.setenv("THRESHER_STATE", str(directory))
    yield directory
    NamedStack("crash").down(discard=True)
    shutil.rmtree(directory)


def test_a_throwaway_stack_is_gone_after_its_owner_died() -> None:
    with contextlib.ExitStack() as owners:
        died = [
            (
                number,
                owners.enter_context(
                    subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment())
                ),
            )
            for number, script in (
                (signal.SIGKILL, OWNER),
                (signal.SIGTERM, POSTGRES_OWNER),
                (signal.SIGSEGV, POSTGRES_OWNER),
            )
        ]
        told, everybody = [], set()
        for _, owner in died:
            assert owner.stdout is not None
            told.append(json.loads(owner.stdout.readline()))
            everybody |= descendants(owner.pid) | set(told[-1]["pids"])
        assert all(alive(pid) for each in told for pid in each["pids"])
        for number, owner in died:
            owner.send_signal(number)
    eventually(lambda: not any(map(alive, everybody)), GONE_SECONDS)
    eventually(lambda: not any(Path(each["directory"]).exists() for each in told), GONE_SECONDS)


def test_a_stack_ends_although_its_owners_forked_child_lives() -> None:
    # The child holds the owner's ends of all pipes open, so only the change of parent shows that the owner died. The
    # fork comes before the owner's first output.
    fork = "import os\nif os.fork() == 0: time.sleep(600); os._exit(0)\nprint("
    script = POSTGRES_OWNER.replace("print(", fork)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment()) as owner:
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        children = descendants(owner.pid)
        owner.kill()
    try:
        eventually(lambda: not any(map(alive, told["pids"])), GONE_SECONDS)
        # The keepers remove the directory first, so that only the child is killed below.
        eventually(lambda: not Path(told["directory"]).exists(), GONE_SECONDS)
    finally:
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
    eventually(lambda: not server.running, GONE_SECONDS)
    server.stop()


def test_a_server_that_ignores_its_stop_signal_is_killed(tmp_path: Path) -> None:
    server = Server("stubborn", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    server.start(["sh", "-c", "trap '' TERM; touch ready; while :; do sleep 0.1; done"])
    eventually((tmp_path / "ready").exists, GONE_SECONDS)
    pid = server.pid
    assert server.stop(grace_seconds=0.5) == 128 + signal.SIGKILL
    assert not alive(pid)


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    server = Server("paused", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    server.start(["sleep", "600"])
    pid = server.pid
    server.send(signal.SIGSTOP)
    assert server.stop() == 128 + signal.SIGTERM
    assert not alive(pid)
    assert server.stop() is None


def test_a_server_that_dies_by_itself_can_still_be_stopped(tmp_path: Path) -> None:
    for delay in (0.0, 0.001, 0.005, 0.02):
        server = Server("mortal", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
        server.start(["sleep", "600"])
        os.kill(server.pid, signal.SIGKILL)
        time.sleep(delay)
        server.stop()
        assert not server.running


def test_child_processes_of_a_killed_server_end_with_it(tmp_path: Path) -> None:
    server = Server("parent", tmp_path, stop_signal=signal.SIGTERM, end_signal=signal.SIGKILL)
    server.start(["sh", "-c", "setsid sleep 600 & sleep 600"])
    pid = server.pid
    eventually(lambda: len(descendants(pid)) >= 2, GONE_SECONDS)
    left = descendants(pid)
    server.kill()
    assert not any(map(alive, left))


def test_a_killed_postgres_restarts_despite_a_busy_backend(stack: Stack, dsn: str) -> None:
    busy = psycopg.connect(dsn, autocommit=True)
    busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 100000000000)")
    busy.pgconn.flush()
    time.sleep(0.5)
    stack.postgres.server.kill()
    stack.postgres.start()
    psycopg.connect(dsn).close()
    busy.close()


def test_concurrent_stack_commands_leave_one_stack_or_none(state: Path) -> None:
    command = [sys.executable, "-m", "thresher", "stack"]
    ups = [subprocess.Popen([*command, "up", "--name", "crash", "--json"], stdout=subprocess.PIPE) for _ in range(2)]
    poll = subprocess.Popen([*command, "status", "--name", "crash"], stdout=subprocess.DEVNULL)
    told = [json.loads(up.communicate(timeout=150)[0]) for up in ups]
    assert [up.returncode for up in ups] == [0, 0]
    assert told[0]["processes"] == told[1]["processes"]
    poll.wait()
    assert NamedStack("crash").endpoints() is not None
    up = subprocess.Popen([*command, "up", "--name", "crash"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(
        [*command, "down", "--name", "crash", "--discard"], check=True, stdout=subprocess.DEVNULL, timeout=150
    )
    up.wait(150)
    NamedStack("crash").down(discard=True)
    eventually(lambda: not any(map(alive, told[0]["processes"].values())), GONE_SECONDS)


def test_an_interrupted_up_leaves_nothing_running(state: Path) -> None:
    everybody: set[int] = set()
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as up:

        def ended() -> bool:
            everybody.update(descendants(up.pid))
            return up.poll() is not None

        eventually(ended, 150)
        assert up.returncode == 130
    assert everybody
    assert not NamedStack("crash").running
    eventually(lambda: not any(map(alive, everybody)), GONE_SECONDS)


def test_a_kept_stack_starts_after_crashes_with_its_data(state: Path) -> None:
    stack = NamedStack("crash")
    # The state after a crash during the first start: a partial data directory, a formatted node, and no complete files.
    directory = stack.directory
    (directory / "postgres" / "data.new").mkdir(parents=True)
    (directory / "postgres" / "data.new" / "PG_VERSION").write_text("18")
    (directory / "cluster.id.draft").write_text("half")
    if os.geteuid() == 0:
        for place in (directory.parent, directory):
            place.chmod(0o755)
    endpoints = stack.up(Spec())
    assert all(map(alive, endpoints.processes.values()))
    with psycopg.connect(endpoints.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    # Without its host process no server runs, and all data is kept.
    os.kill(endpoints.processes["host"], signal.SIGKILL)
    eventually(lambda: not any(map(alive, endpoints.processes.values())), GONE_SECONDS)
    assert not stack.running
    assert stack.endpoints() is None
    again = stack.up(Spec())
    with psycopg.connect(again.dsn) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
