"""Kills a relay at its seams under a continuous load, and judges the whole by what readers got.

Every round has an order for each shard. When all have arrived at their seams, the victim is killed: each worker there,
or the driver, or its JVM, while the workers stand where they are. A hit counts if rows were in flight, and if recovery
then did what it must there: after a commit all of them are settled, before it none.
"""

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.processes import PYTHON_PATH, ROOT, descendants, eventually, is_java, open_directory
from tests.relay.guarded import PROXIED
from tests.relay.hook import COMMIT_SENT, HOOK
from thresher.db import TableName
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack import ports
from thresher.devstack.broker import KafkaOptions, Listener
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import create_schema
from thresher.relay.settings import Delivery
from thresher.testing.checker import Verdict, check
from thresher.testing.history import read_history
from thresher.testing.proxy import Api, Cut, Frame, Hold, KafkaProxy, Rule
from thresher.testing.pump import Fleet, Plan, Tally
from thresher.testing.reading import read_topics, rows_held

SHARDS = 4
NAME = "crash"
TOPIC = "crash.orders"
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
# Who stands at a seam is killed by us and by nobody else, however long a machine stalls.
PATIENT = {"silence_seconds": 300.0, "deaf_seconds": 300.0}
# A driver that is told to stop has 30 s for its shards, and 20 s beyond.
END_SECONDS = 120.0


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


class CrashRun:
    """A stack, a load and a relay that is killed and started again. A context manager."""

    def __init__(self, *, rate: float = 400.0, delivery: Delivery = Delivery.EXACTLY_ONCE, nodes: int = 1) -> None:
        self.report = Report()
        # Of the relays that are started from now on.
        self.delivery = delivery
        self.policy: Mapping[str, float] = PATIENT
        self._directory = open_directory()
        self.log = self._directory / "relay.log"
        self.clock = self._directory / "clock"
        self._rate = rate
        self._nodes = nodes
        self._number = 0
        self._expected: dict[int, Hit] = {}
        self._tally: Tally | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.exits: list[int] = []

    def __enter__(self) -> "CrashRun":
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            ways = [ports.free_port() for _ in range(self._nodes)]
            self.stack = stack.enter_context(Stack(kafka=self.broker(*ways)))
            self.proxies = {
                node: stack.enter_context(KafkaProxy(f"{ports.HOST}:{self.stack.kafka.port(PROXIED, node)}", port=way))
                for node, way in zip(self.stack.kafka.nodes, ways, strict=True)
            }
            self.proxy = self.proxies[1]
            self.dsn = self.stack.postgres.create_database("crash")
            with psycopg.connect(self.dsn) as connection:
                create_schema(connection, TableName(table="outbox"))
            Admin(self.stack.kafka.bootstrap).create_topic(TOPIC, partitions=4)
            self.seams = self._directory / "seams"
            self.seams.mkdir()
            self.history = self._directory / "history.jsonl"
            self._judged: list[Path] = []
            self._commits: dict[tuple[int, int], int] = {}
            self.proxy.on_request(Api.END_TXN, self._note_commit)
            self._begin_load()
            stack.callback(self._end_load)
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def broker(self, *ways: int) -> KafkaOptions:
        """How the cluster is set up, with a way in to each node through the proxy at that port."""
        return KafkaOptions(
            nodes=len(ways),
            listeners=(Listener(name=PROXIED, advertised_ports=ways),),
            properties={"auto.create.topics.enable": "false"},
        )

    # The load

    def _begin_load(self) -> None:
        plan = Plan(
            dsn=self.dsn, records=10_000_000, keys=50, topic=TOPIC, writers=3, transaction_rows=5, rollback_share=0.1,
            # What overlaps has no order, and may come between a record and its repeat.
            rate=self._rate, skew=0.5, own_keys=self.delivery is Delivery.AT_LEAST_ONCE,
            run=secrets.token_hex(4), history=self.history, patience_seconds=120.0,
        )  # fmt: skip
        self._fleet, self._tally = Fleet(plan), None
        self._load = threading.Thread(target=self._pump, daemon=True)
        self._load.start()

    def _pump(self) -> None:
        self._tally = self._fleet.run()

    def _end_load(self) -> Tally:
        self._fleet.stop()
        self._load.join(END_SECONDS)
        if self._tally is None:
            raise AssertionError("the load ended with an error")
        return self._tally

    # The relay

    def start(self, *, hook: str | None = HOOK, **changes: Any) -> "subprocess.Popen[bytes]":
        """Start a relay; the one before it, if it lives, is left alone."""
        given = {
            "name": NAME, "dsn": self.dsn, "shards": SHARDS, "hook": hook, "batch_rows": 200,
            "bootstrap": ",".join(proxy.address for proxy in self.proxies.values()),
            "delivery": self.delivery, "policy": self.policy, **changes,
        }  # fmt: skip
        variables = {
            **os.environ,
            "PYTHONPATH": PYTHON_PATH,
            "THRESHER_SEAMS": str(self.seams),
            "THRESHER_SEAMS_DSN": self.dsn,
            "THRESHER_CLOCK": str(self.clock),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.relay.program", json.dumps(given)],
                cwd=ROOT, env=variables, stdout=log, stderr=log,
            )  # fmt: skip
        return self.process

    def stop(self) -> int | None:
        """Stop the relay in good order; return its exit code."""
        if self.process is None:
            return None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

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
        draft = self.seams / f"draft-{shard}"
        draft.write_text(str(seam))
        draft.rename(self.seams / f"order-{shard}")

    def _arrived(self, shard: int, seam: str) -> dict[str, Any]:
        path = self.seams / f"arrived-{shard}"
        eventually(path.exists, ARRIVAL_SECONDS, lambda: f"nobody came to {seam} on shard {shard}: {self.said()}")
        found: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        assert found["seam"] == seam
        return found

    def _write_hit(self, shard: int, rows: list[int], number: int) -> None:
        draft = self.seams / f"hit-draft-{shard}"
        draft.write_text(json.dumps({"rows": rows, "number": number}))
        draft.rename(self.seams / f"hit-{shard}")

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
        path = self.seams / "recovered"
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
        for shard in range(SHARDS):
            if f"{NAME}-{shard}".encode() in frame.raw:
                self._commits[frame.connection, frame.correlation] = shard

    def _hold_answer(self, shard: int) -> Rule:
        def armed(frame: Frame) -> Hold | None:
            mine = self._commits.get((frame.connection, frame.correlation)) == shard
            return Hold() if mine and (self.seams / f"arrived-{shard}").exists() else None

        return self.proxy.on_answer(Api.END_TXN, armed, times=1)

    # The end

    def load_again(self) -> None:
        """Begin another load, after a verdict: the next one is over all of it."""
        self._judged.append(self.history)
        self.history = self._directory / f"history-{len(self._judged)}.jsonl"
        self._begin_load()

    def verdict(self, seconds: float = 200.0, *, everything: bool = False) -> tuple[Verdict, Tally]:
        """End the load, let everything arrive, stop the relay, and judge.

        By what readers of committed records got; `everything`: by what readers of all got, who may get one again.
        """
        tally = self._end_load()
        if self.process is None or self.process.poll() is not None:
            self.start(hook=None)
        with psycopg.connect(self.dsn, autocommit=True) as connection:

            def drained() -> bool:
                row = connection.execute("SELECT count(*) FROM outbox").fetchone()
                return row is not None and row[0] == 0

            eventually(drained, seconds, lambda: f"rows are left: {self.said()}")
            code = self.stop()
            assert code == 0, f"exit code {code}: {self.said()}"
            held = rows_held(connection, TableName(table="outbox"))
        reads = read_topics(self.stack.kafka.bootstrap, [TOPIC], uncommitted=everything)
        transactions = [each for history in (*self._judged, self.history) for each in read_history(history)]
        return check(transactions, reads, dead=held.dead, pending=held.pending, repeats_allowed=everything), tally


Round = tuple[str, dict[int, str]]


def schedule(seed: int, hits: int) -> Iterator[Round]:
    """Yield rounds that hit every seam so often, every victim at every seam among them."""
    draw = random.Random(seed)
    for victim in VICTIMS:
        yield from _rounds(draw, victim, SEAMS * (max(1, hits - 2) if victim == "worker" else 1))


def short_schedule(seed: int, hits: int) -> Iterator[Round]:
    """Yield rounds that hit every seam so often: a worker, and once the driver or its JVM, each in each group."""
    draw = random.Random(seed)
    yield from _rounds(draw, "worker", SEAMS * (hits - 1))
    # Two of either group make a round for the JVM; the rest are the driver's.
    java = [str(seam) for group in GROUPS for seam in draw.sample(group, 2)]
    yield from _rounds(draw, "jvm", java)
    yield from _rounds(draw, "driver", [seam for seam in SEAMS if seam not in java])


def _rounds(draw: random.Random, victim: str, seams: Sequence[str]) -> Iterator[Round]:
    left = draw.sample(seams, len(seams))
    while left:
        yield victim, {shard: left.pop() for shard in range(min(SHARDS, len(left)))}
