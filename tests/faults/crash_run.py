"""Kills a program at its crash points under a continuous load, and judges the whole by what readers got.

Every round has an order for each shard. When all have arrived at their crash points, the victim is killed: each worker
there, or the driver, or its JVM, while the workers stand where they are. A hit counts if rows were in flight, and if
recovery then did what it must there: after a commit all of them are settled, before it none.
"""

import contextlib
import json
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
SEAMS = [str(seam) for group in GROUPS for seam in group]
BEFORE_COMMIT = {CrashPoint.BEFORE_BEGIN, CrashPoint.PRODUCED_SOME, CrashPoint.FLUSHED, CrashPoint.BEFORE_COMMIT}
VICTIMS = ("worker", "driver", "jvm")
# Seen: 3 s until all stand at their seams, 9 s with a driver that has to start first.
ARRIVAL_SECONDS = 150.0
# For programs of a crash run: a worker at a crash point is killed by the run alone, however long a machine stalls.
PATIENT = {"silence_seconds": 300.0, "deaf_seconds": 300.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A kill at a seam with rows in flight."""

    number: int
    seam: str
    victim: str
    rows: int


@dataclass
class Report:
    """What was hit, and what recovery made of it."""

    hits: list[Hit] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def counted(self) -> Counter[str]:
        return Counter(hit.seam for hit in self.hits)

    def victims(self) -> dict[str, set[str]]:
        return {seam: {hit.victim for hit in self.hits if hit.seam == seam} for seam in SEAMS}

    def lines(self) -> list[str]:
        counted, victims = self.counted(), self.victims()
        return [f"{seam:20} {counted[seam]:4} hits   {', '.join(sorted(victims[seam]))}" for seam in SEAMS]


C = TypeVar("C", bound=CrashSubject)


class CrashRun(Scene[C]):
    """A scene whose program is killed and started again. A context manager."""

    def __init__(self, subject: C, *, nodes: int = 1) -> None:
        super().__init__(subject, nodes=nodes)
        self.orders = self.directory / "orders"
        self.report = Report()
        self.exits: list[int] = []
        self._number = 0
        self._expected: dict[int, Hit] = {}
        self._commits: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Self:
        self.orders.mkdir()
        super().__enter__()
        self.proxies[1].on_request(Api.END_TXN, self._note_commit)
        return self

    def start(
        self, *, hook: str | None = crash_hook.HOOK, variables: Mapping[str, str] | None = None, **settings: Any
    ) -> "subprocess.Popen[bytes]":
        """Start a program whose workers stop at crash points."""
        told = crash_hook.variables(self.orders, self.subject.left)
        return super().start(variables={**told, **(variables or {})}, hook=hook, **settings)

    # Rounds

    def round(self, victim: str, orders: dict[int, str]) -> None:
        """Have every shard stop at its seam, kill, and see what recovery did."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        recovering = {shard: seam for shard, seam in orders.items() if seam in RECOVERING}
        plain = {shard: seam for shard, seam in orders.items() if seam not in RECOVERING}
        workers = []
        for shard, arrival in self._into_recovery(recovering).items():
            workers.append(self._hit(victim, shard, arrival))
        held: dict[int, Rule] = {}
        # Last those whose commit is not answered: they wait for some seconds only, the others for as long as it takes.
        for waiting in (False, True):
            ordered = {shard: seam for shard, seam in plain.items() if (seam == COMMIT_SENT) is waiting}
            for shard, seam in ordered.items():
                if waiting:
                    held[shard] = self._hold_answer(shard)
                self._order(shard, seam)
            for shard, seam in ordered.items():
                if waiting:
                    held[shard].wait(timeout_seconds=ARRIVAL_SECONDS)
                workers.append(self._hit(victim, shard, self._arrived(shard, seam)))
        self._kill(victim, workers)
        for rule in held.values():
            rule.release(Cut())
        self._await_recovery(orders)

    def _hit(self, victim: str, shard: int, arrival: dict[str, Any]) -> int:
        """Note what is hit where the shard stands, for the recovery that follows; return the worker."""
        self._number += 1
        self._expected[self._number] = Hit(
            number=self._number, seam=arrival["seam"], victim=victim, rows=len(arrival["rows"])
        )
        self._write_hit(shard, arrival["rows"], self._number)
        pid: int = arrival["pid"]
        return pid

    def _into_recovery(self, seams: dict[int, str]) -> dict[int, dict[str, Any]]:
        """Kill workers after a commit, so that there is something to recover, and have their successors stop."""
        rows = {}
        for shard in seams:
            self._order(shard, CrashPoint.COMMITTED)
        for shard, seam in seams.items():
            arrival = self._arrived(shard, CrashPoint.COMMITTED)
            rows[shard] = arrival["rows"]
            self._write_hit(shard, rows[shard], 0)
            self._order(shard, seam)
            os.kill(arrival["pid"], signal.SIGKILL)
        return {shard: self._arrived(shard, seam) | {"rows": rows[shard]} for shard, seam in seams.items()}

    def _order(self, shard: int, seam: str) -> None:
        draft = self.orders / f"draft-{shard}"
        draft.write_text(str(seam))
        draft.rename(self.orders / f"order-{shard}")

    def _arrived(self, shard: int, seam: str) -> dict[str, Any]:
        path = self.orders / f"arrived-{shard}"
        eventually(path.exists, ARRIVAL_SECONDS, lambda: f"nobody came to {seam} on shard {shard}: {self.said()}")
        found: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        assert found["seam"] == seam
        return found

    def _write_hit(self, shard: int, rows: list[int], number: int) -> None:
        draft = self.orders / f"hit-draft-{shard}"
        draft.write_text(json.dumps({"rows": rows, "number": number}))
        draft.rename(self.orders / f"hit-{shard}")

    def _kill(self, victim: str, workers: list[int]) -> None:
        assert self.process is not None
        if victim == "worker":
            for pid in workers:
                # Whose commit was not answered for too long has ended by itself: its recovery is judged all the same.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        if victim == "driver":
            self.process.kill()
            self.process.wait()
        else:
            (java,) = filter(is_java, descendants(self.process.pid))
            os.kill(java, signal.SIGKILL)
            # It says that Spark is gone, and that it may be started again.
            self.exits.append(self.process.wait(END_SECONDS))
        self.start()

    def _await_recovery(self, orders: dict[int, str]) -> None:
        waiting = set(self._expected)

        def recovered() -> bool:
            for line in self._recovered_lines():
                number = line["number"]
                if number in self._expected:
                    self._judge(self._expected.pop(number), line)
            return not waiting & set(self._expected)

        eventually(recovered, ARRIVAL_SECONDS, lambda: f"no recovery after {orders}: {self.said()}")

    def _recovered_lines(self) -> list[dict[str, Any]]:
        path = self.orders / "recovered"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _judge(self, hit: Hit, line: dict[str, Any]) -> None:
        left = 0 if hit.seam not in BEFORE_COMMIT else line["of"]
        if line["left"] != left or not line["of"]:
            self.report.wrong.append(f"{hit}: {line['left']} of {line['of']} rows were left after recovery")
        else:
            self.report.hits.append(hit)

    # The wire

    def _note_commit(self, frame: Frame) -> None:
        """Remember whose commit a request is: the transactional id is in it."""
        for shard in range(self.subject.shards):
            if f"{self.subject.name}-{shard}".encode() in frame.raw:
                self._commits[frame.connection, frame.correlation] = shard

    def _hold_answer(self, shard: int) -> Rule:
        def armed(frame: Frame) -> Hold | None:
            mine = self._commits.get((frame.connection, frame.correlation)) == shard
            return Hold() if mine and (self.orders / f"arrived-{shard}").exists() else None

        return self.proxies[1].on_answer(Api.END_TXN, armed, times=1)

    # The end

    def verdict(self, seconds: float = 200.0, *, everything: bool = False) -> tuple[Verdict, Tally]:
        """End the load, let everything arrive, stop the program, and judge."""
        tally = self.subject.end_load()
        if self.process is None or self.process.poll() is not None:
            self.start(hook=None)
        eventually(self.subject.drained, seconds, lambda: f"rows are left: {self.said()}")
        code = self.stop()
        assert code == 0, f"exit code {code}: {self.said()}"
        return self.subject.verdict(everything=everything), tally


Round = tuple[str, dict[int, str]]


def schedule(seed: int, hits: int, shards: int) -> Iterator[Round]:
    """Yield rounds that hit every seam so often, every victim at every seam among them."""
    draw = random.Random(seed)
    for victim in VICTIMS:
        yield from _rounds(draw, victim, SEAMS * (max(1, hits - 2) if victim == "worker" else 1), shards)


def short_schedule(seed: int, hits: int, shards: int) -> Iterator[Round]:
    """Yield rounds that hit every seam so often: a worker, and once the driver or its JVM, each in each group."""
    draw = random.Random(seed)
    yield from _rounds(draw, "worker", SEAMS * (hits - 1), shards)
    # Two of either group make a round for the JVM; the rest are the driver's.
    java = [str(seam) for group in GROUPS for seam in draw.sample(group, 2)]
    yield from _rounds(draw, "jvm", java, shards)
    yield from _rounds(draw, "driver", [seam for seam in SEAMS if seam not in java], shards)


def _rounds(draw: random.Random, victim: str, seams: Sequence[str], shards: int) -> Iterator[Round]:
    left = draw.sample(seams, len(seams))
    while left:
        yield victim, {shard: left.pop() for shard in range(min(shards, len(left)))}
