"""Kills a program at its crash points under a continuous load, and checks the records that readers got.

Every round orders each shard to a crash point. When all workers have stopped there, the victim is killed: the workers,
the driver or its JVM. A hit counts if rows were in flight and recovery was right: it settles all of them after a
commit, and none before.
"""

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from tests.faults import crash_hook
from tests.faults.crash_hook import COMMIT_SENT
from tests.faults.orders import ARRIVAL_SECONDS, Orders
from tests.faults.scene import END_SECONDS, Scene
from tests.faults.subject import CrashSubject
from tests.processes import descendants, eventually, is_java
from thresher.delivery.crash_points import CrashPoint
from thresher.testing.checker import Verdict
from thresher.testing.proxy import Api, Cut, Frame, Hold, Rule
from thresher.testing.pump import Tally

PLAIN = [
    CrashPoint.BEFORE_BEGIN,
    CrashPoint.PRODUCED_SOME,
    CrashPoint.FLUSHED,
    CrashPoint.BEFORE_COMMIT,
    COMMIT_SENT,
    CrashPoint.COMMITTED,
    CrashPoint.SETTLING,
]
RECOVERING = [
    CrashPoint.RECOVERY_FENCED,
    CrashPoint.RECOVERY_CHECKED,
    CrashPoint.RECOVERY_READ,
    CrashPoint.RECOVERY_SETTLING,
    CrashPoint.RECOVERED,
]
GROUPS = (PLAIN, RECOVERING)
CRASH_POINTS = [str(point) for group in GROUPS for point in group]
BEFORE_COMMIT = {CrashPoint.BEFORE_BEGIN, CrashPoint.PRODUCED_SOME, CrashPoint.FLUSHED, CrashPoint.BEFORE_COMMIT}
VICTIMS = ("worker", "driver", "jvm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A kill at a crash point with rows in flight."""

    number: int
    point: str
    victim: str
    rows: int


@dataclass
class Report:
    """The hits of a run, and the recoveries that went wrong."""

    hits: list[Hit] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def counted(self) -> Counter[str]:
        return Counter(hit.point for hit in self.hits)

    def victims(self) -> dict[str, set[str]]:
        return {point: {hit.victim for hit in self.hits if hit.point == point} for point in CRASH_POINTS}

    def lines(self) -> list[str]:
        counted, victims = self.counted(), self.victims()
        return [f"{point:20} {counted[point]:4} hits   {', '.join(sorted(victims[point]))}" for point in CRASH_POINTS]


C = TypeVar("C", bound=CrashSubject)


class CrashRun(Scene[C]):
    """A scene whose program is killed and started again. A context manager."""

    def __init__(self, subject: C, *, nodes: int = 1) -> None:
        super().__init__(subject, nodes=nodes)
        self._orders = Orders(self.directory / "orders", self.said)
        self.report = Report()
        self.exits: list[int] = []
        self._number = 0
        self._expected: dict[int, Hit] = {}
        self._commits: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Self:
        self._orders.directory.mkdir()
        super().__enter__()
        self.proxies[1].on_request(Api.END_TXN, self._note_commit)
        return self

    def start(
        self, *, hook: str | None = crash_hook.HOOK, variables: Mapping[str, str] | None = None, **settings: Any
    ) -> "subprocess.Popen[bytes]":
        """Start a program whose workers stop at crash points."""
        told = crash_hook.variables(self._orders.directory, self.subject.left)
        return super().start(variables={**told, **(variables or {})}, hook=hook, **settings)

    # Rounds

    def round(self, victim: str, orders: dict[int, str]) -> None:
        """Stop every shard at its crash point, kill the victim, and check the recovery."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        recovering = {shard: point for shard, point in orders.items() if point in RECOVERING}
        plain = {shard: point for shard, point in orders.items() if point not in RECOVERING}
        workers = []
        for shard, arrival in self._into_recovery(recovering).items():
            workers.append(self._hit(victim, shard, arrival))
        held: dict[int, Rule] = {}
        # Shards with an unanswered commit come last: their client waits for some seconds only, the others wait for
        # ever.
        for waiting in (False, True):
            ordered = {shard: point for shard, point in plain.items() if (point == COMMIT_SENT) is waiting}
            for shard, point in ordered.items():
                if waiting:
                    held[shard] = self._hold_answer(shard)
                self._orders.stop(shard, point)
            for shard, point in ordered.items():
                if waiting:
                    held[shard].wait(timeout_seconds=ARRIVAL_SECONDS)
                workers.append(self._hit(victim, shard, self._orders.arrived(shard, point)))
        self._kill(victim, workers)
        for rule in held.values():
            rule.release(Cut())
        self._await_recovery(orders)

    def _hit(self, victim: str, shard: int, arrival: dict[str, Any]) -> int:
        """Note the hit at the shard's crash point, for the recovery that follows; return the worker."""
        self._number += 1
        self._expected[self._number] = Hit(
            number=self._number, point=arrival["point"], victim=victim, rows=len(arrival["rows"])
        )
        self._orders.expect_recovery(shard, arrival["rows"], self._number)
        pid: int = arrival["pid"]
        return pid

    def _into_recovery(self, points: dict[int, str]) -> dict[int, dict[str, Any]]:
        """Kill workers after a commit, so that recovery has rows to settle; stop their successors in recovery."""
        rows = {}
        for shard in points:
            self._orders.stop(shard, CrashPoint.COMMITTED)
        for shard, point in points.items():
            arrival = self._orders.arrived(shard, CrashPoint.COMMITTED)
            rows[shard] = arrival["rows"]
            self._orders.expect_recovery(shard, rows[shard])
            self._orders.stop(shard, point)
            os.kill(arrival["pid"], signal.SIGKILL)
        return {shard: self._orders.arrived(shard, point) | {"rows": rows[shard]} for shard, point in points.items()}

    def _kill(self, victim: str, workers: list[int]) -> None:
        assert self.process is not None
        if victim == "worker":
            for pid in workers:
                # A worker whose commit stayed unanswered for too long has ended by itself. Its recovery is judged all
                # the same.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        if victim == "driver":
            self.process.kill()
            self.process.wait()
        else:
            (java,) = filter(is_java, descendants(self.process.pid))
            os.kill(java, signal.SIGKILL)
            # The driver ends with the exit code for "Spark is gone, start it again".
            self.exits.append(self.process.wait(END_SECONDS))
        self.start()

    def _await_recovery(self, orders: dict[int, str]) -> None:
        waiting = set(self._expected)

        def recovered() -> bool:
            for line in self._orders.recoveries():
                number = line["number"]
                if number in self._expected:
                    self._judge(self._expected.pop(number), line)
            return not waiting & set(self._expected)

        eventually(recovered, ARRIVAL_SECONDS, lambda: f"no recovery after {orders}: {self.said()}")

    def _judge(self, hit: Hit, line: dict[str, Any]) -> None:
        left = 0 if hit.point not in BEFORE_COMMIT else line["of"]
        if line["left"] != left or not line["of"]:
            self.report.wrong.append(f"{hit}: {line['left']} of {line['of']} rows were left after recovery")
        else:
            self.report.hits.append(hit)

    # The wire

    def _note_commit(self, frame: Frame) -> None:
        """Remember the shard of a commit request, by the transactional id in it."""
        for shard in range(self.subject.shards):
            if f"{self.subject.name}-{shard}".encode() in frame.raw:
                self._commits[frame.connection, frame.correlation] = shard

    def _hold_answer(self, shard: int) -> Rule:
        def armed(frame: Frame) -> Hold | None:
            mine = self._commits.get((frame.connection, frame.correlation)) == shard
            return Hold() if mine and self._orders.has_arrived(shard) else None

        return self.proxies[1].on_answer(Api.END_TXN, armed, times=1)

    # The end

    def verdict(self, seconds: float = 200.0, *, everything: bool = False) -> tuple[Verdict, Tally]:
        """End the load, wait until the outbox is drained, stop the program, and judge."""
        tally = self.subject.end_load()
        if self.process is None or self.process.poll() is not None:
            self.start(hook=None)
        eventually(self.subject.drained, seconds, lambda: f"rows are left: {self.said()}")
        code = self.stop()
        assert code == 0, f"exit code {code}: {self.said()}"
        return self.subject.verdict(everything=everything), tally


Round = tuple[str, dict[int, str]]


def schedule(seed: int, hits: int, shards: int) -> Iterator[Round]:
    """Yield rounds that hit every crash point `hits` times, each with every kind of victim."""
    draw = random.Random(seed)
    for victim in VICTIMS:
        yield from _rounds(draw, victim, CRASH_POINTS * (max(1, hits - 2) if victim == "worker" else 1), shards)


def short_schedule(seed: int, shards: int) -> Iterator[Round]:
    """Yield rounds that kill workers at every crash point, and the JVM and the driver at two others of each group."""
    draw = random.Random(seed)
    yield from _rounds(draw, "worker", CRASH_POINTS, shards)
    drawn = [draw.sample(group, 4) for group in GROUPS]
    yield from _rounds(draw, "jvm", [str(point) for points in drawn for point in points[:2]], shards)
    yield from _rounds(draw, "driver", [str(point) for points in drawn for point in points[2:]], shards)


def _rounds(draw: random.Random, victim: str, points: Sequence[str], shards: int) -> Iterator[Round]:
    left = draw.sample(points, len(points))
    while left:
        yield victim, {shard: left.pop() for shard in range(min(shards, len(left)))}
