"""A database with an outbox, a replication slot for one test, and streams of that slot."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.processes import eventually
from thresher.db.log_emitter import LogKey
from thresher.db.names import TableName
from thresher.db.postgres.replication.emitter import PostgresEmitter
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect_as_configured
from thresher.outbox import Message, Outbox, create_schema
from thresher.tail.chunk import Chunk
from thresher.tail.log_seal import LogKeys
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.slot import create_slot, emitter_problems
from thresher.tail.stream import LogStream

_NUMBERS = itertools.count(1)
OUTBOX = TableName(table="outbox", schema="public")


def close_server_functions(connection: psycopg.Connection[Any], outbox: TableName) -> None:
    """Let only an outbox's own function write messages to the WAL, as its check advises."""
    found = PostgresEmitter(connection, outbox).read()
    for problem in emitter_problems(found, LogSource(outbox=outbox)):
        connection.execute(problem.mend.encode())


class Logged:
    """The database of a test of the WAL. Slots belong to the whole server, so each test has a slot name of its own."""

    def __init__(self, dsn: str, source: Source) -> None:
        self.dsn, self.source = dsn, source
        self.slot = f"test_{os.getpid()}_{next(_NUMBERS)}"
        self.connection = psycopg.connect(dsn, autocommit=True)
        create_schema(self.connection, OUTBOX)
        self.observer = connect_as_configured(dsn, "observer")
        self.slots = PostgresSlots(self.observer)
        create_slot(self.slots, self.slot, self.slot, source)
        if isinstance(source, LogSource):
            close_server_functions(self.observer, source.outbox)

    @contextmanager
    def stream(self, **options: Any) -> Iterator[LogStream]:
        made = LogStream(
            options.pop("dsn", self.dsn), application="tail", slot=self.slot, publication=self.slot, source=self.source,
            keys=LogKeys(self.keys) if isinstance(self.source, LogSource) else None,
            **options,
        )  # fmt: skip
        try:
            yield made
        finally:
            made.close()

    def stash(self, *topics: str, **options: Any) -> None:
        """Store messages in one transaction."""
        with self.connection.transaction():
            Outbox(**options).stash_many(self.connection, [Message(topic=topic, key=b"k") for topic in topics])

    def keys(self) -> tuple[int, Mapping[int, LogKey]]:
        assert isinstance(self.source, LogSource)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return PostgresEmitter(connection, self.source.outbox).keys()

    def confirmed(self) -> int:
        slot = self.slots.slot(self.slot)
        assert slot is not None
        assert slot.confirmed is not None
        return slot.confirmed

    def close(self) -> None:
        self.connection.close()
        with psycopg.connect(self.dsn, autocommit=True) as last:
            ask = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active"
            eventually(lambda: last.execute(ask, [self.slot]).fetchone() == (0,), 30, lambda: "the slot is still read")
            last.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
            )
        self.observer.close()


@contextmanager
def logged(dsn: str, *, via: str = "table") -> Iterator[Logged]:
    source: Source = TableSource(table=OUTBOX) if via == "table" else LogSource(outbox=TableName(table="outbox"))
    made = Logged(dsn, source)
    try:
        yield made
    finally:
        made.close()


def read_rows(stream: LogStream, count: int, *, rows: int = 10_000, seconds: float = 60.0) -> list[Chunk]:
    """Read chunks until `count` rows have come, and return them."""
    chunks: list[Chunk] = []
    while sum(len(chunk.rows) for chunk in chunks) < count:
        chunk = stream.read(rows, 2**20, seconds)
        assert chunk is not None, f"only {sum(len(chunk.rows) for chunk in chunks)} rows of {count} came"
        chunks.append(chunk)
    return chunks


def read_until(stream: LogStream, enough: Callable[[Chunk], bool], tries: int = 100) -> list[Chunk]:
    """Read chunks until one satisfies `enough`, and return them."""
    chunks: list[Chunk] = []
    for _ in range(tries):
        chunk = stream.read(10_000, 2**20, 0.3)
        if chunk is not None:
            chunks.append(chunk)
            if enough(chunk):
                return chunks
    raise AssertionError(f"not among {chunks}")


def read_commits(stream: LogStream, count: int) -> int:
    """Read `count` rows and the end of the last one's commit, and return that end.

    Ends of commits without rows, such as those of the server's own work, may come before.
    """
    last = read_rows(stream, count)[-1]
    commit = last.positions[-1].commit
    return last.ended if last.ended > commit else read_until(stream, lambda chunk: chunk.ended > commit)[-1].ended


def topics(chunks: list[Chunk]) -> list[str]:
    return [row[2] for chunk in chunks for row in chunk.rows]
