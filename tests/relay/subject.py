"""The relay as the subject of runs with faults: its outbox, its load and the verdict on it."""

import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.program import Program
from tests.faults.scene import END_SECONDS
from tests.faults.subject import Subject
from tests.relay.relay_program import LEFT, relay_program
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import create_schema
from thresher.relay.settings import Delivery
from thresher.testing.checker import Verdict, check
from thresher.testing.history import Transaction, read_history
from thresher.testing.pump import Fleet, Plan, Tally
from thresher.testing.reading import Held, read_topics, rows_held

NAME = "crash"
TOPIC = f"{NAME}.orders"
TABLE = TableName(table="outbox")
# A worker that stands at a crash point is killed by the run and by nobody else, however long a machine stalls.
PATIENT = {"silence_seconds": 300.0, "deaf_seconds": 300.0}


class RelaySubject(Subject):
    """A relay with four shards under a load of a few writers. `delivery` is that of relays started from now on."""

    name = NAME
    shards = 4
    left = LEFT
    policy: Mapping[str, float] = PATIENT

    def __init__(self, *, rate: float = 400.0, delivery: Delivery = Delivery.EXACTLY_ONCE) -> None:
        self.delivery = delivery
        self._rate = rate
        self._histories: list[Path] = []
        self._tally: Tally | None = None

    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        self.stack, self._bootstrap, self._directory = stack, bootstrap, directory
        self.dsn = stack.postgres.create_database(NAME)
        with psycopg.connect(self.dsn) as connection:
            create_schema(connection, TABLE)
        Admin(stack.kafka.bootstrap).create_topic(TOPIC, partitions=4)

    def program(self, **settings: Any) -> Program:
        given = {"shards": self.shards, "batch_rows": 200, "delivery": self.delivery, "policy": self.policy}
        return relay_program(name=NAME, dsn=self.dsn, bootstrap=self._bootstrap, **{**given, **settings})

    # The load

    @property
    def history(self) -> Path:
        """Where the load notes what it writes."""
        return self._histories[-1]

    def begin_load(self) -> None:
        self._histories.append(self._directory / f"history-{len(self._histories)}.jsonl")
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

    def end_load(self) -> Tally:
        self._fleet.stop()
        self._load.join(END_SECONDS)
        if self._tally is None:
            raise AssertionError("the load ended with an error")
        return self._tally

    # The end

    def drained(self) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is None

    def verdict(self, *, everything: bool) -> Verdict:
        held = self.held()
        reads = read_topics(self.stack.kafka.bootstrap, [TOPIC], uncommitted=everything)
        return check(self.transactions(), reads, dead=held.dead, pending=held.pending, repeats_allowed=everything)

    def held(self) -> Held:
        """Return what the database still has."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return rows_held(connection, TABLE)

    def transactions(self) -> list[Transaction]:
        """Return what all loads so far have written."""
        return [each for history in self._histories for each in read_history(history)]
