"""The cost of a sweep of a few rows among millions of stamped rows, against an outbox without stamped rows.

A sweep is the work of a sweeper's shard that finds rows. It looks which buckets hold rows, and marks the oldest rows
that have a least age. In each round both outboxes get the same rows, in turns; the rows are stamped afterwards.

    ./run bench sweeps [--stamped N]
"""

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg

from bench.measuring.place import durable_stack, machine
from bench.measuring.rounds import in_turns
from thresher.db import TableName
from thresher.db.control import NewControlRow
from thresher.db.outbox_store import Settling, Wanted
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.marks import PostgresMarks
from thresher.db.postgres.store import PostgresSession, PostgresStore
from thresher.outbox import Shape, create_schema

STAMPED, ROWS, ROUNDS = 5_000_000, 100, 41
# These rows are stamped after they were pending, as by a dispatcher. Until autovacuum runs, the index keeps their
# entries.
_LATELY = 200_000
_RELAY = "sweeps"
_LEADER = uuid.UUID(int=1)
_MIN_AGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCost:
    """Medians in milliseconds, their ratio, and the plan of a sweep among the stamped rows."""

    full_ms: float
    empty_ms: float
    # The same, with 200,000 rows that were just stamped, before autovacuum has run.
    before_vacuum_ms: float
    plan: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The time of a sweep among stamped rows, divided by that without them."""
        return self.full_ms / self.empty_ms


class SweptOutbox:
    """An outbox and a sweeper's session in it."""

    def __init__(self, session: PostgresSession) -> None:
        self._session, self._outbox = session, session.outbox
        session.create_tables()
        term = str(uuid.uuid4())
        session.control.insert(
            NewControlRow(
                name=f"{_RELAY}-{session.outbox.schema}",
                outbox=session.outbox.quoted(),
                outbox_id=str(uuid.uuid4()),
                system_id="bench",
                term=term,
                mode="at-least-once",
                shards=1,
            )
        )
        found = session.incarnation()
        self.marks: PostgresMarks = session.marks(f"{_RELAY}-{session.outbox.schema}", term, table=found.table)
        self._probe = session.probe(range(64))

    def write(self, rows: int, *, stamped: bool = False) -> None:
        """Store rows that are older than the sweep's least age."""
        self._execute(
            "INSERT INTO {} (create_time, dispatched_time, kafka_topic, kafka_key, kafka_value) "
            "SELECT now() - interval '1 hour', CASE WHEN %s THEN now() END, 'orders', convert_to('k' || n %% 5000, "
            "'UTF8'), convert_to(repeat('v', 100), 'UTF8') FROM generate_series(1, %s) n",
            stamped,
            rows,
        )

    def stamp(self) -> None:
        """Stamp every pending row."""
        self._execute("UPDATE {} SET dispatched_time = now() WHERE dispatched_time IS NULL")

    def vacuum(self) -> None:
        """Do what autovacuum does within a minute."""
        self._execute("VACUUM ANALYZE {}")

    def _execute(self, query: str, *values: object) -> None:
        self._session.connection.execute(query.format(self._outbox.quoted()).encode(), values or None)

    def sweep(self, rows: int) -> float:
        """Write rows, and return the milliseconds of the sweep that finds them."""
        self.write(rows)
        began = time.perf_counter()
        occupied = self._probe.occupied()
        marked = self.marks.mark(_wanted(rows), _LEADER)
        took = time.perf_counter() - began
        if not occupied or len(marked) != rows:
            raise AssertionError(f"{len(marked)} of {rows} rows were swept")
        self.stamp()
        return took * 1000

    def plan(self, rows: int) -> tuple[str, ...]:
        """Return the plan of a sweep, executed and rolled back."""
        self.write(rows)
        query, values = self.marks.statement(_wanted(rows), _LEADER)
        with self._session.connection.transaction(force_rollback=True):
            cursor = OwnCursor(self._session.connection)
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {query}".encode(), values)
            lines = tuple(line for (line,) in cursor.fetchall())
        self.stamp()
        return lines


def sweep_cost(dsn: str, *, stamped: int = STAMPED, rows: int = ROWS, rounds: int = ROUNDS) -> SweepCost:
    """Measure in an empty database."""
    with _outbox(dsn, "stamped") as full, _outbox(dsn, "bare") as empty:
        full.write(stamped - min(stamped, _LATELY), stamped=True)
        full.vacuum()
        full.write(min(stamped, _LATELY))
        full.stamp()
        before_vacuum = [full.sweep(rows) for _ in range(11)]
        full.vacuum()
        empty.vacuum()
        sides = {"full": lambda: full.sweep(rows), "empty": lambda: empty.sweep(rows)}
        found = in_turns(sides, rounds, warm=5)
        return SweepCost(
            full_ms=statistics.median(found["full"]),
            empty_ms=statistics.median(found["empty"]),
            before_vacuum_ms=statistics.median(before_vacuum),
            plan=full.plan(rows),
        )


def _wanted(rows: int) -> Wanted:
    return Wanted(
        buckets=range(64),
        # The request of a shard, without a limit per bucket.
        rows=1_000,
        rows_per_bucket=rows,
        batch_bytes=16_000_000,
        largest_bytes=16_000_000,
        min_age_seconds=_MIN_AGE_SECONDS,
    )


@contextmanager
def _outbox(dsn: str, schema: str) -> Iterator[SweptOutbox]:
    name = TableName(table="outbox", schema=schema)
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        create_schema(connection, name)
    store = PostgresStore(dsn, name, Shape.THRESHER, Settling.STAMP)
    with closing(store.session("bench", locate=True, durable=False)) as session:
        yield SweptOutbox(session)


def main() -> int:
    """Start servers, and measure; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stamped", type=int, default=STAMPED, help="rows that were sent before")
    options = parser.parse_args()
    with durable_stack() as stack:
        cost = sweep_cost(stack.postgres.create_database("sweeps"), stamped=options.stamped)
    sys.stdout.write("\n".join(cost.plan) + "\n")
    figures = {
        "sweep_5m_vs_empty": cost.ratio,
        "full_ms": cost.full_ms,
        "empty_ms": cost.empty_ms,
        "before_vacuum_ms": cost.before_vacuum_ms,
    }
    rounded = {name: round(value, 2) for name, value in figures.items()}
    sys.stdout.write(json.dumps({**rounded, "machine": machine()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
