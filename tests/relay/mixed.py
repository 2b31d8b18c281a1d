"""A random soak: faults of every kind, by a schedule, against a relay under load; judged by what readers got.

Each part of the scene (`tests/relay/mix`) has the faults that concern it, as methods under the names of the schedule.
"""

import multiprocessing
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg

from tests.processes import eventually
from tests.relay import drift
from tests.relay.crashing import CrashRun
from tests.relay.guarded import LOGIN, guarded
from tests.relay.mix.administrator import Administrator
from tests.relay.mix.agenda import DOWN, Agenda
from tests.relay.mix.brokers import Brokers
from tests.relay.mix.clock import Clock
from tests.relay.mix.database import Database
from tests.relay.mix.movement import Movement
from tests.relay.mix.outline import Outline
from tests.relay.mix.relays import Relays
from tests.relay.mix.rows import Rows
from tests.relay.mix.wires import Wires
from tests.relay.mixing import Fault
from thresher.db import TableName
from thresher.devstack.broker import KafkaOptions
from thresher.relay.settings import Delivery
from thresher.testing.checker import Verdict, check
from thresher.testing.history import Outcome, read_history
from thresher.testing.pump import Tally
from thresher.testing.reading import read_topics, rows_held

# So long without a row that moves, and no further fault comes; so long, and something is wrong.
STILL_SECONDS, STUCK_SECONDS = 15.0, 180.0
TOLD_SECONDS = 10.0
PARTS = (Relays, Rows, Database, Brokers, Wires, Administrator, Clock)


class MixedRun(CrashRun):
    """A stack with an authorizer, a load, and a relay that is never left alone. A context manager."""

    def __init__(
        self,
        *,
        rate: float = 400.0,
        delivery: Delivery = Delivery.EXACTLY_ONCE,
        nodes: int = 1,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(rate=rate, delivery=delivery, nodes=nodes)
        # Who is stopped here is taken for dead, as everywhere.
        self.policy = {}
        self.outline = Outline()
        self._tell = tell
        self._agenda = Agenda(tell)
        self._relays = Relays(self._start_relay, agenda=self._agenda, outline=self.outline, said=self.said)

    def broker(self, *ways: int) -> KafkaOptions:
        # Leaders stay where they went until a fault brings them back.
        return guarded(*ways, properties={"auto.leader.rebalance.enable": "false"})

    def __enter__(self) -> "MixedRun":
        super().__enter__()
        try:
            agenda, kafka = self._agenda, self.stack.kafka
            self._database = Database(self.stack.postgres, self.dsn, writers=_writers, agenda=agenda)
            self._brokers = Brokers(kafka, agenda=agenda)
            own_keys = self.delivery is Delivery.AT_LEAST_ONCE
            self._rows = Rows(self._database.connect, self.history, own_keys=own_keys, agenda=agenda)
            self._administrator = Administrator(kafka, self._rows, self._relays, agenda=agenda)
            self._administrator.prepare()
            self._parts: tuple[object, ...] = (
                self._relays, self._rows, self._database, self._brokers, Wires(self.proxies, agenda=agenda),
                self._administrator, Clock(self.clock, agenda=agenda),
            )  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._relays.close()
        self.process = None
        super().__exit__()

    def _start_relay(self, shards: int, transforms: Sequence[str]) -> "subprocess.Popen[bytes]":
        return self.start(hook=drift.HOOK, shards=shards, transforms=transforms, kafka=LOGIN)

    # The course of it

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Do the faults when they are due, keep a relay running, and end after so many seconds, healed.

        Where rows have not moved for long, the schedule's clock stands until they do: a relay that is only ever broken
        while it starts shows nothing. If they do not within a bound, although no fault comes, that is wrong.
        """
        self._agenda.begin()
        self._relays.begin()
        coming = list(faults)
        clock = told = last = 0.0
        movement = Movement()
        while (now := self._agenda.now) < seconds:
            self._agenda.do_due(now)
            self._look_after()
            movement.look(now, self._database.counted)
            clock += 0.0 if movement.still(now) > STILL_SECONDS else now - last
            last = now
            while coming and coming[0].at <= clock:
                self._do(coming.pop(0))
            if movement.still(now) > STUCK_SECONDS:
                self.outline.wrong.append(f"at {now:.1f} s no row had moved for {STUCK_SECONDS:g} s: {self.said()}")
                movement = Movement(moved=now)
            if now - told >= TOLD_SECONDS:
                told = now
                self._agenda.tell(f"{movement.waiting} rows wait, {len(self._relays.alive())} relays")
            time.sleep(0.1)
        self.outline.unreached = len(coming)
        self._heal()

    def _do(self, fault: Fault) -> None:
        self._tell(fault.line())
        name = fault.kind.replace("-", "_")
        (act,) = (getattr(part, name) for part in self._parts if hasattr(part, name))
        try:
            done = act(**fault.parameters)
        except DOWN as error:
            self._agenda.tell(f"{fault.kind} could not be done: {str(error).strip()}")
            done = False
        (self.outline.missed if done is False else self.outline.faults).update([fault.kind])

    def _look_after(self) -> None:
        self._relays.look_after()
        self._brokers.look_after()

    def _heal(self) -> None:
        self._agenda.heal()
        self._database.start()
        self._look_after()
        self._brokers.heal()

    # The end of it

    def verdict(self, seconds: float = STUCK_SECONDS, *, everything: bool = False) -> tuple[Verdict, Tally]:
        """End the load, let everything arrive, for as long as rows move within a bound; stop the relay, and judge."""
        tally = self._end_load()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self._drain(connection, seconds)
            self._stop_relay()
            held = rows_held(connection, TableName(table="outbox"))
        reads = read_topics(self.stack.kafka.bootstrap, self._administrator.topics, uncommitted=everything)
        transactions = read_history(self.history)
        committed = {name for each in transactions if each.outcome is Outcome.COMMITTED for name in each.identities()}
        self.outline.wrong += self._rows.wrong(held.dead, committed)
        seen = {read.identity for read in reads}
        # Who reads everything may have got a row with a wave that came to nothing, before it could be sent no more.
        dead = held.dead - (self._rows.doubtful & seen) if everything else held.dead
        verdict = check(
            transactions,
            reads,
            dead=dead,
            pending=held.pending,
            filtered=self._rows.filtered - seen,
            repeats_allowed=everything,
        )
        return verdict, tally

    def _drain(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        movement = Movement(moved=self._agenda.now)
        while connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is not None:
            self._look_after()
            movement.look(self._agenda.now, self._database.counted)
            still = movement.still(self._agenda.now)
            assert still < seconds, f"{movement.waiting} rows are left, and none moves: {self.said()}"
            time.sleep(0.1)

    def _stop_relay(self) -> None:
        older = self._relays.older
        eventually(lambda: not any(each in self._relays.alive() for each in older), 60, lambda: "older relays go on")
        self._look_after()
        current = self._relays.current
        current.process.terminate()
        if (code := current.process.wait(60)) != 0:
            self.outline.wrong.append(f"stopped in good order, the relay ended with {code}")


def _writers() -> list[int]:
    """The processes of the load, which is a thread of this one."""
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.pid is not None and child.name.startswith("pump-writer-")]
