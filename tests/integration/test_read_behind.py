"""The safety rule of windows, with transactions of a real server: savepoints, late commits, prepared transactions.

Transactions run at random, from a seed. At a random moment the oldest transaction is read, and then they go on. Every
row that the rule lets through must have been committed at that moment. One thread does it all, so the order is known.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.relay.databases import own_postgres
from thresher.db import TableName
from thresher.db.outbox_store import PendingReader, Settling, Wanted
from thresher.db.postgres.store import PostgresStore
from thresher.db.shape import BUCKETS, Shape
from thresher.devstack.postgres import Postgres
from thresher.outbox import create_schema
from thresher.relay.reading.scan_plan import HIGHEST, LOWEST, OldestTransaction, RowAfter, may_read_after

WRITERS, STEPS, ROUNDS = 4, 40, 50
OUTBOX = TableName(table="outbox")
WANTED = Wanted(buckets=range(BUCKETS), rows=100_000, batch_bytes=2**40, largest_bytes=2**30)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_postgres(max_prepared_transactions="20") as running:
        yield running


@dataclass
class Writer:
    """A session with the rows of its open transaction: one list, and one for each savepoint."""

    connection: psycopg.Connection[Any]
    parts: list[list[int]] = field(default_factory=lambda: [[]])

    @property
    def rows(self) -> list[int]:
        return [id_ for part in self.parts for id_ in part]


class Course:
    """Random actions of the writers, and the rows that are committed so far."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.writers = [Writer(psycopg.connect(dsn)) for _ in range(WRITERS)]
        self.administrator = psycopg.connect(dsn, autocommit=True)
        self.prepared: dict[str, list[int]] = {}
        self.committed: set[int] = set()
        self.done: set[str] = set()
        # Names of prepared transactions are shared by the whole server.
        self._names = map(f"{seed}-{{}}".format, itertools.count())

    def go(self, steps: int) -> None:
        """Do `steps` random actions."""
        doings: dict[Callable[[Writer], None], int] = {
            self.insert: 8, self.savepoint: 3, self.roll_back_to: 1, self.release: 1, self.commit: 4,
            self.roll_back: 1, self.prepare: 2, self.end_prepared: 2,
        }  # fmt: skip
        for _ in range(steps):
            (doing,) = self.chance.choices([*doings], [*doings.values()])
            doing(self.chance.choice(self.writers))

    def insert(self, writer: Writer) -> None:
        # Ids come in any order: a row that commits late may have a low id.
        row = writer.connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k') RETURNING id"
        ).fetchone()
        assert row is not None
        writer.parts[-1].append(row[0])

    def savepoint(self, writer: Writer) -> None:
        writer.connection.execute(f"SAVEPOINT s{len(writer.parts)}")
        writer.parts.append([])
        self.insert(writer)

    def roll_back_to(self, writer: Writer) -> None:
        if len(writer.parts) > 1:
            writer.connection.execute(f"ROLLBACK TO s{len(writer.parts) - 1}")
            writer.parts[-1] = []
            self.done.add("rolled back to a savepoint")

    def release(self, writer: Writer) -> None:
        if len(writer.parts) > 1:
            writer.connection.execute(f"RELEASE s{len(writer.parts) - 1}")
            released = writer.parts.pop()
            writer.parts[-1] += released

    def commit(self, writer: Writer) -> None:
        self.done.update(["savepoint committed"] if any(writer.parts[1:]) else [])
        writer.connection.commit()
        self._ended(writer, writer.rows)

    def roll_back(self, writer: Writer) -> None:
        writer.connection.rollback()
        self._ended(writer, [])

    def prepare(self, writer: Writer) -> None:
        if writer.rows:
            name = next(self._names)
            writer.connection.execute(f"PREPARE TRANSACTION '{name}'")
            self.prepared[name] = writer.rows
            # psycopg still takes the session for being in the transaction.
            writer.connection.rollback()
            self._ended(writer, [])

    def end_prepared(self, _: Writer) -> None:
        if self.prepared:
            name = self.chance.choice(sorted(self.prepared))
            rows = self.prepared.pop(name)
            if self.chance.random() < 0.8:
                self.administrator.execute(f"COMMIT PREPARED '{name}'")
                self.committed.update(rows)
                self.done.add("prepared committed")
            else:
                self.administrator.execute(f"ROLLBACK PREPARED '{name}'")

    def end(self) -> None:
        """Commit every open transaction."""
        for writer in self.writers:
            self.commit(writer)
        for name, rows in self.prepared.items():
            self.administrator.execute(f"COMMIT PREPARED '{name}'")
            self.committed.update(rows)
        self.prepared.clear()

    def close(self) -> None:
        for connection in [self.administrator, *(writer.connection for writer in self.writers)]:
            connection.close()

    def _ended(self, writer: Writer, rows: list[int]) -> None:
        self.committed.update(rows)
        writer.parts = [[]]


def readable(reader: PendingReader, oldest_transaction: str) -> tuple[set[int], set[int]]:
    """Return all visible rows, and the rows that the rule lets through."""
    window, whole = reader.window(WANTED, after=LOWEST, upto=HIGHEST, oldest_transaction=oldest_transaction)
    assert whole
    ids, ages, oldest_ages = (window.column(name).to_pylist() for name in ("id", "age", "oldest_age"))
    return set(ids), {
        id_
        for id_, age, at in zip(ids, ages, oldest_ages, strict=True)
        if may_read_after(RowAfter(age=age, generation=0), OldestTransaction(age=at, generation=0))
    }


@pytest.mark.parametrize("seed", range(3))
def test_rows_older_than_the_oldest_transaction_were_committed(server: Postgres, seed: int) -> None:
    dsn = server.create_database(f"course_{seed}")
    with psycopg.connect(dsn) as connection:
        create_schema(connection, OUTBOX)
    store = PostgresStore(dsn, OUTBOX, Shape.THRESHER, Settling.DELETE)
    with contextlib.closing(store.session("tests")) as session:
        session.create_tables()
        since = session.incarnation().since
    course = Course(dsn, seed)
    allowed = refused = 0
    with contextlib.closing(course), contextlib.closing(store.pending_reader("tests", since=since)) as reader:
        for _ in range(ROUNDS):
            course.go(course.chance.randrange(STEPS))
            oldest = reader.oldest_transaction()
            assert oldest is not None
            committed = set(course.committed)
            course.go(course.chance.randrange(STEPS))
            there, may = readable(reader, oldest)
            assert there == course.committed
            assert may <= committed, f"not committed by then: {sorted(may - committed)}"
            allowed, refused = allowed + len(may), refused + len(there - may)
        # Without open transactions the rule lets every row through.
        course.end()
        oldest = reader.oldest_transaction()
        assert oldest is not None
        assert readable(reader, oldest) == (course.committed, course.committed)
    # Otherwise the test has shown nothing.
    assert course.done == {"rolled back to a savepoint", "savepoint committed", "prepared committed"}
    assert min(allowed, refused) > 100, (allowed, refused)
