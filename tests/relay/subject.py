"""The relay as the subject of runs with faults: its outbox, its load and the verdict on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.orders import PATIENT
from tests.faults.program import Program
from tests.faults.subject import CrashSubject
from tests.relay.load import Load, judged
from tests.relay.relay_program import LEFT, relay_program
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import create_schema
from thresher.relay.settings import Delivery
from thresher.testing.checker import Verdict
from thresher.testing.history import Transaction, read_history
from thresher.testing.pump import Tally
from thresher.testing.reading import Held, rows_held

NAME = "crash"
TOPIC = f"{NAME}.orders"
TABLE = TableName(table="outbox")


class RelaySubject(CrashSubject):
    """A relay with four shards under a load of a few writers. `delivery` is used by relays that are started later.

    `batch_rows` is the most rows of a transaction. Up to 200, every read is a small one, without windows.
    """

    name = NAME
    shards = 4
    left = LEFT
    table = TABLE
    topic = TOPIC
    policy: Mapping[str, float] = PATIENT

    keys = 50
    batch_rows = 200

    def __init__(self, *, rate: float = 400.0, delivery: Delivery = Delivery.EXACTLY_ONCE) -> None:
        self.delivery = delivery
        self._rate = rate
        self._loads: list[Load] = []

    def prepare(self, stack: Stack, bootstrap: str, directory: Path) -> None:
        self.stack, self._bootstrap, self._directory = stack, bootstrap, directory
        self.dsn = stack.postgres.create_database(NAME)
        with psycopg.connect(self.dsn) as connection:
            create_schema(connection, TABLE)
        Admin(stack.kafka.bootstrap).create_topic(TOPIC, partitions=4)

    def program(self, **settings: Any) -> Program:
        given = {"shards": self.shards, "batch_rows": self.batch_rows, "delivery": self.delivery, "policy": self.policy}
        return relay_program(name=NAME, dsn=self.dsn, bootstrap=self._bootstrap, **{**given, **settings})

    # The load

    @property
    def history(self) -> Path:
        """The history file of the load."""
        return self._loads[-1].history

    def begin_load(self) -> None:
        self._begin(rate=self._rate)

    def _begin(self, **plan: Any) -> Load:
        # Overlapping transactions have no order: their rows may come between a record and its repeat.
        own_keys = self.delivery is Delivery.AT_LEAST_ONCE
        load = Load(
            self, self._directory, **{"keys": self.keys, "writers": 3, "skew": 0.5, "own_keys": own_keys, **plan}
        )
        self._loads.append(load)
        return load.__enter__()

    def end_load(self) -> Tally:
        self._loads[-1].stop()
        return self._loads[-1].tally

    # The end

    def pending(self) -> int:
        """Return the number of pending rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT count(*) FROM outbox").fetchone()
        return int(row[0]) if row else 0

    def drained(self) -> bool:
        return self.pending() == 0

    def verdict(self, *, everything: bool) -> Verdict:
        return judged(self, [load.history for load in self._loads], everything=everything)

    def held(self) -> Held:
        """Return the pending and dead rows of the database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return rows_held(connection, TABLE)

    def transactions(self) -> list[Transaction]:
        """Return the transactions of all loads so far."""
        return [each for load in self._loads for each in read_history(load.history)]
