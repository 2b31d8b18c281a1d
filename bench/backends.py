"""Topic locks compared with a leader's relay, the inbox with a plain transaction, sweeps, and the archive.

    ./run bench backends [--quick] [--only PART,…] [--rows N] [--rounds N]

    throughput  a backlog in 20 topics: relays that share topics by locks against a leader's, with the same shards, and
                with the fastest number of rows per batch, which is found first
    latency     single rows at random times, 20 a second, to one topic that is shared by locks
    inbox       a transaction of one UPDATE, with and without a row in the inbox
    sweep       100 rows among five million stamped ones, against an outbox without stamped rows; the plan is shown
    archive     stamped rows to Parquet files and to a table

Figures are medians of the rounds; the sides take turns. The last line printed is one JSON object.
"""

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.archives import archive_rows_per_s
from bench.measuring.parts import add_parts, chosen_parts
from bench.measuring.place import durable_stack
from bench.measuring.report import measured, report, say
from bench.measuring.rounds import Figures, in_turns, medians, middle
from bench.relays.latency import PER_SECOND, WARM_SECONDS, cuts, latencies
from bench.relays.place import KEYS, OUTBOX, PARTITIONS, VALUE_BYTES, WARM_SHARE, Place, watch, without_markers
from bench.relays.sides import SHARDS, relay
from bench.sweeps import ROWS as SWEPT
from bench.sweeps import STAMPED, sweep_cost
from thresher.db.postgres.topic_locks import create_locks
from thresher.devstack.stack import Stack
from thresher.inbox import Inbox, create_inbox
from thresher.outbox import Shape

PARTS = ("throughput", "latency", "inbox", "sweep", "archive")
POSTGRES = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
TOPICS = 20
BATCHES = (1_000, 4_000, 10_000)
WANTED = {
    "topic_lock_vs_leader": "≥ 0.4", "topic_lock_p95_ms": "≤ 1000", "inbox_overhead": "≤ 0.5",
    "sweep_5m_vs_empty": "≤ 2",
}  # fmt: skip
_LOCKS = ("--coordination", "topic-lock")
# The number of transactions of one measurement.
_ENTERED = 400


class Bench:
    """The parts, over one stack."""

    def __init__(self, stack: Stack, options: argparse.Namespace) -> None:
        self.quick = options.quick
        self.rounds = options.rounds or (1 if options.quick else 3)
        self.rows = options.rows or (100_000 if options.quick else 400_000)
        self.seconds = 10.0 if options.quick else 20.0
        self.batch_rows = 0
        self.stack = stack
        producer = {"linger.ms": 0, "compression.type": "lz4"}
        self._led, self._locked = (Place.of(stack, producer) for _ in range(2))

    @contextmanager
    def locking(self, batch_rows: int) -> Iterator[int]:
        """Run a relay that shares topics by locks while the context lasts."""
        with relay(self._locked, *_LOCKS, "--batch-rows", str(batch_rows)) as process:
            yield process

    def carried(self, place: Place, batch_rows: int | None) -> float:
        """Measure a relay on the backlog: a leader's relay or, with `batch_rows`, one with topic locks."""
        names = place.new_topics(TOPICS)
        place.fill(f"rows_{VALUE_BYTES}", names, rows=self.rows)
        with relay(place) if batch_rows is None else self.locking(batch_rows):
            watched = watch(place, names, self.rows)
            place.drained()
            return without_markers(place, names, self.rows, watched).per_second

    def throughput(self) -> Figures:
        for place in (self._led, self._locked):
            place.prepare(self.rows)
        with psycopg.connect(self._locked.dsn) as connection:
            create_locks(connection, OUTBOX, Shape.THRESHER)
        # Not counted: the first relay on a machine creates an archive of Spark's classes.
        self.carried(self._led, None)
        tried = {rows: self.carried(self._locked, rows) for rows in BATCHES}
        for rows, rate in tried.items():
            say(f"{rows:,} rows a batch: {rate:,.0f} a second")
        self.batch_rows = max(tried, key=lambda rows: tried[rows])
        sides = {
            "topic_lock_per_s": lambda: self.carried(self._locked, self.batch_rows),
            "leader_per_s": lambda: self.carried(self._led, None),
        }
        figures = medians(in_turns(sides, self.rounds, tell=measured))
        return {**figures, "topic_lock_vs_leader": figures["topic_lock_per_s"] / figures["leader_per_s"]}

    def latency(self) -> Figures:
        with psycopg.connect(self._locked.dsn) as connection:
            create_locks(connection, OUTBOX, Shape.THRESHER)
        rounds = []
        for _ in range(self.rounds):
            p50, p95, p99 = cuts(latencies(self._locked, lambda _: self.locking(1_000), self.seconds))
            say(f"latency: p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f}")
            rounds.append({"topic_lock_p50_ms": p50, "topic_lock_p95_ms": p95, "topic_lock_p99_ms": p99})
        return middle(rounds)

    def inbox(self) -> Figures:
        dsn = self.stack.postgres.create_database("inbox")
        inbox, entered = Inbox(), 0
        with psycopg.connect(dsn) as connection:
            create_inbox(connection, inbox.name)
            connection.execute("CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)")
            connection.execute("INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 100) n")
            connection.commit()

            def took(*, once: bool) -> float:
                nonlocal entered
                began = time.perf_counter()
                for number in range(_ENTERED):
                    entered += 1
                    with connection.transaction():
                        if once:
                            with inbox.once(connection, f"message-{entered}", context="bench"):
                                _change(connection, number)
                        else:
                            _change(connection, number)
                return (time.perf_counter() - began) / _ENTERED * 1000

            found = in_turns(
                {"with": lambda: took(once=True), "without": lambda: took(once=False)}, 3 * self.rounds, warm=1
            )
        ratios = [one / other - 1 for one, other in zip(found["with"], found["without"], strict=True)]
        return {
            "update_ms": statistics.median(found["without"]),
            "inbox_ms": statistics.median(found["with"]),
            "inbox_overhead": statistics.median(ratios),
        }

    def sweep(self) -> Figures:
        stamped = STAMPED // 10 if self.quick else STAMPED
        cost = sweep_cost(self.stack.postgres.create_database("sweeps"), stamped=stamped)
        for line in cost.plan:
            say(line)
        return {
            "sweep_5m_vs_empty": cost.ratio,
            "sweep_ms": cost.full_ms,
            "sweep_before_vacuum_ms": cost.before_vacuum_ms,
        }

    def archive(self) -> Figures:
        dsn = self.stack.postgres.create_database("archive")
        with tempfile.TemporaryDirectory() as directory:
            return archive_rows_per_s(dsn, Path(directory) / "archive", rounds=self.rounds)


def _change(connection: psycopg.Connection[tuple[object, ...]], number: int) -> None:
    connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", [number % 100 + 1])


def main() -> None:
    """Start servers, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of fewer rows")
    add_parts(parser, PARTS)
    parser.add_argument("--rows", type=int, help="rows of the backlog")
    parser.add_argument("--rounds", type=int, help="measurements of each side")
    options = parser.parse_args()
    chosen = chosen_parts(options, PARTS)
    logging.disable(logging.WARNING)
    figures: Figures = {}
    with durable_stack(POSTGRES) as stack:
        bench = Bench(stack, options)
        for name in chosen:
            say(f"== {name}")
            figures |= getattr(bench, name)()
    settings = {
        "rows": bench.rows, "value_bytes": VALUE_BYTES, "headers": 1, "keys": KEYS, "topics": TOPICS,
        "partitions": PARTITIONS, "shards": SHARDS, "topic_lock_batch_rows": bench.batch_rows, "warm_share": WARM_SHARE,
        "rounds": bench.rounds, "latency_rows_per_s": PER_SECOND, "latency_seconds": bench.seconds,
        "latency_warm_seconds": WARM_SECONDS, "stamped": STAMPED, "swept": SWEPT,
    }  # fmt: skip
    note = (
        f"{bench.rows:,} rows, {VALUE_BYTES}-byte values, one header, {KEYS:,} keys, {TOPICS} topics of {PARTITIONS} "
        f"partitions, {SHARDS} shards on both sides, warm-up {WARM_SHARE:.0%} of the rows; topic locks with "
        f"{bench.batch_rows:,} rows a batch, the quickest of {', '.join(f'{rows:,}' for rows in BATCHES)}; latency at "
        f"{PER_SECOND} rows/s for {bench.seconds:g} s after {WARM_SECONDS:g} s, one topic, 1,000 rows a batch; "
        f"{bench.rounds} rounds"
    )
    report(
        "backends; durable Postgres 18, 256 MB of buffers, one broker",
        figures,
        wanted=WANTED,
        settings=settings,
        note=note,
    )


if __name__ == "__main__":
    main()
