"""The place of a tail bench: a slot that keeps the rows of the pump, and a tail that reads it, as a user starts it."""

import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
from confluent_kafka.admin import AdminClient

from bench.relays.place import KEYS, OUTBOX, PATIENCE_SECONDS, VALUE_BYTES, Place, readable
from bench.relays.sides import program
from thresher.db import TableName
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect_as_configured
from thresher.outbox.unpolled import Via
from thresher.tail.log_source import LogSource, TableSource
from thresher.tail.slot import create_slot
from thresher.testing.pump import Fleet, Plan

TRANSACTION_ROWS = 1_000
_WRITERS = 2
_FREE_SECONDS = 20.0


@contextmanager
def slot(place: Place, via: Via) -> Iterator[str]:
    """Create a slot while the context lasts: the WAL is kept from here on. It is the server's only slot."""
    name = f"bench_{secrets.token_hex(4)}"
    table = TableName(table=OUTBOX.table, schema="public")
    source = TableSource(table=table) if via == "table" else LogSource(outbox=OUTBOX)
    with closing(connect_as_configured(place.dsn, "bench")) as connection:
        create_slot(PostgresSlots(connection), name, name, source)
    try:
        yield name
    finally:
        _drop(place, name)


def write(place: Place, topic: str, rows: int, *, via: Via, slot: str) -> None:
    """Let the pump write rows for a topic, in transactions of a thousand, to an empty table."""
    place.execute("TRUNCATE outbox RESTART IDENTITY")
    plan = Plan(
        dsn=place.dsn, records=rows, keys=KEYS, topic=topic, value_bytes=VALUE_BYTES, writers=_WRITERS,
        transaction_rows=TRANSACTION_ROWS, run=secrets.token_hex(4), shape=place.shape, via=via,
        slot=slot if via == "log" else None,
    )  # fmt: skip
    Fleet(plan).run()
    # As before a relay's run: work that the writers left to the server must not count as the tail's.
    place.execute("VACUUM ANALYZE outbox")
    place.execute("CHECKPOINT")


@contextmanager
def tail(place: Place, slot: str, *more: str, via: Via = "table") -> Iterator[int]:
    """Run a tail while the context lasts, under a new name and with these additional flags; yield its process."""
    command = [
        sys.executable, "-m", "thresher", "tail", "run", "--name", place.new_name(), "--slot", slot,
        "--bootstrap", place.bootstrap, "--via", via, "--shape", place.shape.value, *more,
    ]  # fmt: skip
    if via == "log":
        command.append("--accept-public-emit")
    for name, value in place.producer.items():
        command += ["--producer", f"{name}={value}"]
    with program(command, signal.SIGTERM, dsn=place.dsn) as process:
        yield process


def drained(place: Place) -> None:
    """Wait until the table is empty, with few queries, because the database's CPU time is measured meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        while connection.execute("SELECT 1 FROM outbox ORDER BY id LIMIT 1").fetchone():
            if time.monotonic() > deadline:
                raise TimeoutError("rows were left in the table")
            time.sleep(0.2)


def arrived(place: Place, topic: str) -> None:
    """Wait until a topic has a record."""
    client = AdminClient({"bootstrap.servers": place.bootstrap})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not sum(readable(client, [topic])):
        if time.monotonic() > deadline:
            raise TimeoutError("no row arrived")
        time.sleep(0.1)


def table_bytes(place: Place) -> int:
    """Return the size of the outbox table, with its indexes."""
    ((size,),) = place.execute("SELECT pg_total_relation_size('outbox')")
    return int(size)


def _drop(place: Place, name: str) -> None:
    """Drop the slot and its publication. The server frees the slot a moment after its reader has ended."""
    deadline = time.monotonic() + _FREE_SECONDS
    while True:
        try:
            place.execute("SELECT pg_drop_replication_slot(%s)", [name])
            break
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    place.execute(f'DROP PUBLICATION IF EXISTS "{name}"')
