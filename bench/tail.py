"""The tail compared with a polling relay, for an outbox table and for one in the WAL alone; and capture with a loop.

    ./run bench tail [--quick] [--only PART,…] [--rows N] [--rounds N]

    throughput  a backlog that was written before the start: a tail of a table and one of the WAL alone, against a
                relay with two shards; and the database's CPU time for each record, from the start to the end
    latency     single rows at random times, 20 a second: a tail of a table against the relay
    size        how much the outbox table has grown after a million messages of `Outbox(via="log")`
    capture     records of a topic to a table, against a loop with the same upserts; the time of `publish_and_wait`

Rates are those at which rows became readable for a reader of committed records, from the end of the warm-up to the last
row. Figures are medians of the rounds; the sides take turns. The last line printed is one JSON object.
"""

import argparse
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from bench.captures import RECORDS, WAITS, capture_figures
from bench.measuring.parts import add_parts, chosen_parts
from bench.measuring.place import durable_stack
from bench.measuring.processes import cpu_seconds_ever
from bench.measuring.report import report, say
from bench.measuring.rounds import Figures, in_turns, medians, middle
from bench.relays.latency import PER_SECOND, WARM_SECONDS, cuts, latencies
from bench.relays.place import (
    KEYS,
    PARTITIONS,
    VALUE_BYTES,
    WARM_SHARE,
    Place,
    Watched,
    watch,
    without_markers,
)
from bench.relays.sides import SHARDS, relay
from bench.tails.place import TRANSACTION_ROWS, arrived, drained, slot, table_bytes, tail, write
from thresher.devstack.stack import Stack
from thresher.outbox.unpolled import Via

PARTS = ("throughput", "latency", "size", "capture")
POSTGRES = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
WANTED = {
    "tail_per_s": "> 40,000", "vs_polling": "≥ 0.3", "log_vs_polling": "≥ 0.35", "p50_ms": "< 10.4",
    "p50_vs_polling": "≤ 1.2", "db_cpu_vs_polling": "≤ 0.8", "log_table_bytes": "0", "capture_vs_bare": "≥ 0.5",
}  # fmt: skip


class Carried(NamedTuple):
    """A published backlog: rows a second, and the database's CPU time for each, in microseconds."""

    per_second: float
    database_us: float

    def __str__(self) -> str:
        return f"{self.per_second:,.0f} rec/s, the database {self.database_us:.2f} µs a record"


class Bench:
    """The parts, over one stack."""

    def __init__(self, stack: Stack, options: argparse.Namespace) -> None:
        self.quick = options.quick
        self.rounds = options.rounds or (1 if options.quick else 3)
        self.rows = options.rows or (200_000 if options.quick else 600_000)
        self.messages = 100_000 if options.quick else 1_000_000
        self.seconds = 10.0 if options.quick else 20.0
        self.stack = stack
        producer = {"linger.ms": 0, "compression.type": "lz4"}
        self._polled, self._tailed = (Place.of(stack, producer) for _ in range(2))

    def throughput(self) -> Figures:
        self._polled.prepare(self.rows)
        # Not counted: the first pipeline on a machine creates an archive of Spark's classes.
        self.polled()
        sides: dict[str, Callable[[], Carried]] = {
            "polling": self.polled,
            "tail": partial(self.tailed, "table"),
            "log": partial(self.tailed, "log"),
        }
        found = in_turns(sides, self.rounds, tell=lambda name, each: say(f"{name}: {each}"))
        rates = medians({name: [each.per_second for each in carried] for name, carried in found.items()})
        times = medians({name: [each.database_us for each in carried] for name, carried in found.items()})
        say(f"a record of the WAL alone: the database {times['log'] / times['polling']:.2f} of polling")
        return {
            "tail_per_s": rates["tail"],
            "vs_polling": rates["tail"] / rates["polling"],
            "log_vs_polling": rates["log"] / rates["polling"],
            "db_cpu_vs_polling": times["tail"] / times["polling"],
        }

    def polled(self) -> Carried:
        """Measure a relay on a backlog; the database's time ends when the table is empty."""
        place = self._polled
        topics = place.new_topics()
        place.fill(f"rows_{VALUE_BYTES}", topics, rows=self.rows)
        before = self._database_seconds()
        with relay(place):
            watched = watch(place, topics, self.rows)
            drained(place)
            return self._carried(place, topics, watched, before)

    def tailed(self, via: Via) -> Carried:
        """Measure a tail on a backlog that its slot has kept; the database's time ends when the table is empty."""
        place = self._tailed
        topics = place.new_topics()
        with slot(place, via) as name:
            write(place, topics[0], self.rows, via=via, slot=name)
            before = self._database_seconds()
            with tail(place, name, *(("--keep-seconds", "0") if via == "table" else ()), via=via):
                watched = watch(place, topics, self.rows)
                if via == "table":
                    drained(place)
                return self._carried(place, topics, watched, before)

    def _carried(self, place: Place, topics: list[str], watched: Watched, before: float) -> Carried:
        used = self._database_seconds() - before
        rate = without_markers(place, topics, self.rows, watched).per_second
        return Carried(rate, used / self.rows * 1e6)

    def _database_seconds(self) -> float:
        return cpu_seconds_ever(self.stack.postgres.server.pid)

    def latency(self) -> Figures:
        rounds = []
        for _ in range(self.rounds):
            polled = cuts(latencies(self._polled, lambda _: relay(self._polled), self.seconds))
            with slot(self._tailed, "table") as name:
                ways = latencies(
                    self._tailed, partial(self._tail, name), self.seconds, up=partial(arrived, self._tailed)
                )
            p50, p95, p99 = cuts(ways)
            say(
                f"latency: p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f}; polling: p50 {polled[0]:.1f}, "
                f"p95 {polled[1]:.1f}, p99 {polled[2]:.1f}"
            )
            rounds.append({"p50_ms": p50, "p50_vs_polling": p50 / polled[0]})
        return middle(rounds)

    def _tail(self, slot: str, _topic: str) -> AbstractContextManager[int]:
        return tail(self._tailed, slot)

    def size(self) -> Figures:
        place = self._tailed
        place.execute("TRUNCATE outbox RESTART IDENTITY")
        before = table_bytes(place)
        with slot(place, "log") as name:
            write(place, "bench-size", self.messages, via="log", slot=name)
        return {"log_table_bytes": table_bytes(place) - before}

    def capture(self) -> Figures:
        records, waits = (RECORDS // 3, WAITS // 2) if self.quick else (RECORDS, WAITS)
        return capture_figures(self.stack, records=records, rounds_=self.rounds, waits=waits)


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
        "rows": bench.rows, "value_bytes": VALUE_BYTES, "headers": 1, "keys": KEYS, "topics": 1,
        "partitions": PARTITIONS, "polling_shards": SHARDS, "transaction_rows": TRANSACTION_ROWS,
        "warm_share": WARM_SHARE, "rounds": bench.rounds, "latency_rows_per_s": PER_SECOND,
        "latency_seconds": bench.seconds, "latency_warm_seconds": WARM_SECONDS, "messages": bench.messages,
    }  # fmt: skip
    note = (
        f"{bench.rows:,} rows, {VALUE_BYTES}-byte values, one header, {KEYS:,} keys, 1 topic, {PARTITIONS} partitions, "
        f"polling with {SHARDS} shards, a tail's rows in transactions of {TRANSACTION_ROWS:,}, warm-up "
        f"{WARM_SHARE:.0%} of the rows; the database's time with deleting what was published; latency at {PER_SECOND} "
        f"rows/s for {bench.seconds:g} s after {WARM_SECONDS:g} s; {bench.messages:,} messages without a table; "
        f"{bench.rounds} rounds"
    )
    report(
        "tail and capture; durable Postgres 18, 256 MB of buffers, 4 GB of WAL, one broker",
        figures,
        wanted=WANTED,
        settings=settings,
        note=note,
    )


if __name__ == "__main__":
    main()
