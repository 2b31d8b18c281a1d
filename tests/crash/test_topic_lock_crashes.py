"""Processes that share an outbox by topic locks are killed, stopped and terminated; readers' records are checked."""

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.program import Program
from tests.processes import descendants, eventually
from tests.relay.load import Load
from tests.relay.locked_place import LockedPlace
from tests.relay.relay_program import relay_program
from thresher.devstack.stack import Stack
from thresher.outbox import Message

TOPICS = 12
THREADED, ON_SPARK, KILLS = 4, 1, 12
# The number of locks that a killed process must have held.
ABANDONED = 3
# Short, so that the locks of a killed process expire during the test.
LOCKING = {"lock_seconds": 3.0, "rest_seconds": 0.2}
# Seen: 5 s, after the last kill.
DRAINED_SECONDS = 60.0
Places = Callable[[], LockedPlace]


@pytest.fixture
def place(stack: Stack, dsn: str, topic_prefix: str) -> LockedPlace:
    return LockedPlace(stack, dsn, topic_prefix)


def member(at: LockedPlace, **settings: Any) -> Program:
    """Return a program with two worker threads; with `threads=0`, a relay on Spark."""
    given = {"topic_lock": LOCKING, "threads": 2, "shards": 2, "batch_rows": 50, **settings}
    return relay_program(name=at.settings().name, dsn=at.dsn, bootstrap=at.stack.kafka.bootstrap, **given)


class Crew:
    """Processes that are restarted when they are killed. Leaving the context kills all of them."""

    def __init__(self, log: Path, *programs: Program) -> None:
        self._log, self._programs = log, programs
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Crew":
        self.processes = [program.start(self._log) for program in self._programs]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            self._end(process)

    def kill(self, which: int) -> None:
        """Kill a process with its descendants, and start another in its place."""
        self._end(self.processes[which])
        self.processes[which] = self._programs[which].start(self._log)

    def await_relaying(self, which: int) -> None:
        """Wait until a process on Spark relays: it logs so, and one in threads does not."""
        pid = self.processes[which].pid
        said = re.compile(rf"^[-0-9 :,]+ {pid} INFO shard \d+ is relaying", re.MULTILINE)
        eventually(lambda: said.search(self._log.read_text(errors="replace")), 120, self.said)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        below = descendants(process.pid) if process.poll() is None else []
        process.kill()
        process.wait()
        for pid in below:
            subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)

    def stop(self) -> list[int]:
        """Terminate all processes by SIGTERM, and return their exit codes."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(120) for process in self.processes]

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


@pytest.mark.timeout(600)
def test_topic_lock_processes_killed_at_random_lose_and_repeat_nothing(place: LockedPlace, tmp_path: Path) -> None:
    at, draw = place, random.Random(22)
    for number in range(TOPICS):
        at.admin.create_topic(f"{at.topic}-{number}", partitions=2)
    programs = [*(member(at) for _ in range(THREADED)), *(member(at, threads=0) for _ in range(ON_SPARK))]
    with Crew(tmp_path / "log", *programs) as crew:
        with Load(at, tmp_path, topics=TOPICS, keys=100, rate=300.0, rollback_share=0.1, varied=0.1) as load:
            eventually(
                lambda: at.sql("SELECT 1 FROM outbox_lock WHERE last_processed_at IS NOT NULL LIMIT 1"), 120, crew.said
            )
            kills, abandoned = 0, set[tuple[str, int]]()
            while kills < KILLS or (len(abandoned) < ABANDONED and kills < 4 * KILLS):
                time.sleep(draw.uniform(0.3, 1.2))
                abandoned |= at.abandoned(1.5)
                crew.kill(draw.randrange(THREADED))
                kills += 1
            assert len(abandoned) >= ABANDONED, f"the kills met too few held locks: {abandoned}"
            # The process on Spark is killed once, while it relays.
            crew.await_relaying(THREADED)
            crew.kill(THREADED)
            crew.await_relaying(THREADED)
            load.stop()
            eventually(
                lambda: at.pending() == 0, DRAINED_SECONDS, lambda: f"{at.pending()}: {at.locks()} {crew.said()}"
            )
            # A process that was just started has no signal handler yet.
            assert set(crew.stop()) <= {0, -signal.SIGTERM}, crew.said()
            # A terminated process frees its locks: no other process waits for them to expire.
            assert not any(lock["locked_by"] for lock in at.locks().values())
        load.require_clean(100)


@pytest.mark.timeout(300)
def test_a_process_resumed_after_losing_its_lock_changes_nothing(place: LockedPlace, tmp_path: Path) -> None:
    at = place
    with Crew(tmp_path / "log", member(at, threads=1)) as stopped, Load(at, tmp_path, rate=150.0) as load:
        (process,) = stopped.processes
        eventually(lambda: at.locks().get(at.topic, {}).get("last_processed_at"), 120, stopped.said)
        held = stopped_with_lock(at, process)
        with Crew(tmp_path / "other-log", member(at, threads=1)) as other:
            eventually(lambda: at.locks()[at.topic]["token"] > held["token"] + 3, 120, other.said)
            process.send_signal(signal.SIGCONT)
            token = at.locks()[at.topic]["token"]
            eventually(lambda: at.locks()[at.topic]["token"] > token + 20, 120, other.said)
            load.stop()
            eventually(lambda: at.pending() == 0, DRAINED_SECONDS, other.said)
            assert other.stop() == [0]
        assert stopped.stop() == [0], stopped.said()
        load.require_clean(100)


@pytest.mark.timeout(300)
def test_a_terminated_process_finishes_its_batch_and_frees_its_locks(place: LockedPlace, tmp_path: Path) -> None:
    at = place
    at.stash(*(Message(topic=at.topic, key=f"k{n % 9}", value=str(n)) for n in range(6_000)))
    for number in (signal.SIGTERM, signal.SIGINT):
        with Crew(tmp_path / "log", member(at, threads=1, batch_rows=10)) as crew:
            moves(at, crew)
            crew.processes[0].send_signal(number)
            assert crew.processes[0].wait(60) == 0, crew.said()
        lock = at.locks()[at.topic]
        assert lock["locked_by"] is None
        assert not lock["error"]
        assert at.pending() > 0
    with Crew(tmp_path / "log", member(at, threads=1, batch_rows=2_000)) as crew:
        eventually(lambda: at.pending() == 0, DRAINED_SECONDS, crew.said)
    found = at.read(6_000)
    for key in {record.key() for record in found}:
        own = [int(record.value() or b"") for record in found if record.key() == key]
        assert own == sorted(set(own))


@pytest.mark.timeout(300)
def test_the_lock_of_a_killed_process_expires(place: LockedPlace, tmp_path: Path) -> None:
    at = place
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(6_000)))
    with Crew(tmp_path / "log", member(at, threads=1, batch_rows=10)) as crew:
        moves(at, crew)
    assert at.locks()[at.topic]["locked_by"]
    with Crew(tmp_path / "log", member(at, threads=1, batch_rows=2_000)) as crew:
        eventually(lambda: at.pending() == 0, DRAINED_SECONDS, crew.said)
    assert [int(record.value() or b"") for record in at.read(6_000)] == list(range(6_000))


def stopped_with_lock(at: LockedPlace, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Stop the only process while it holds the topic's lock; return the lock."""
    found: dict[str, Any] = {}

    def held() -> bool:
        process.send_signal(signal.SIGSTOP)
        # A statement that it has sent before may still be carried out.
        time.sleep(0.2)
        found.update(at.locks()[at.topic])
        if not found["locked_by"]:
            process.send_signal(signal.SIGCONT)
        return bool(found["locked_by"])

    eventually(held, 60, lambda: f"it was never stopped with the lock: {found}")
    return found


def moves(at: LockedPlace, crew: Crew) -> None:
    """Wait until rows have left the outbox."""
    before = at.pending()
    eventually(lambda: at.pending() < before, 120, crew.said)
