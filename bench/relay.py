"""The relay's cost and growth, compared with plain programs that promise less, and with goharvest.

    ./run bench relay [--delivery exactly-once|at-least-once] [--quick] [--only PART,…] [--skip PART,…]
                      [--peer-binary PATH]

    throughput  a backlog of 1,000 keys, against the ceiling: a tuned plain loop without any guarantee
    hot-key     a backlog of one key, against one shard on 1,000 keys
    latency     single rows at random times, against the floor: one plain loop that polls every millisecond
    noisy       the latency of rows beside 20,000 rows for as many missing topics, beside 300 rows of the year 2100, and
                beside 300 rows that the broker refuses, against the same without them; the grace ends within the
                measurement. Beside the missing topics, also the longest time of the first row of each of five topics
                that exist and are new to the relay, until it is removed
    idle        the CPU time of relay and database while there is nothing to do
    growth      a backlog of three million against a hundred thousand; the database's time per record by shards
    sizes       values of 100 B, 1 KB and 100 KB; 1, 10 and 100 topics; a worker's memory
    peer        goharvest's `reaper` with its defaults, on fewer rows of the same sizes in its own table shape, with a
                broker version that it supports (only with --peer-binary)

Rates are those at which rows became readable for a reader of committed records, from the end of the warm-up to the last
row. Figures with a limit are medians of the rounds, in which the sides take turns. A ratio of times is the median of
the rounds' ratios. The idle figure is the middle of three windows, a worker's memory the higher of two backlogs. The
last line printed is one JSON object: the figures, and the settings of the measurement.
"""

import argparse
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.measuring.parts import add_parts, chosen_parts
from bench.measuring.place import durable_stack
from bench.measuring.processes import cpu_seconds, most_resident_mb, tree
from bench.measuring.report import measured, report, say
from bench.measuring.rounds import Figures, in_turns, medians, middle
from bench.relays.ceiling import Tuning, copying, tuned
from bench.relays.latency import PER_SECOND, WARM_SECONDS, cuts, latencies, polling, unhindered
from bench.relays.place import (
    KEYS,
    PARTITIONS,
    PATIENCE_SECONDS,
    VALUE_BYTES,
    WARM_SHARE,
    Place,
    Watched,
    tally,
    watch,
    without_markers,
)
from bench.relays.sides import SHARDS, reaper, relay
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.stack import Stack
from thresher.outbox import Shape
from thresher.relay.settings import Delivery, Limits

PARTS = ("throughput", "hot-key", "latency", "noisy", "idle", "growth", "sizes", "peer")
# At least once sends the rows of a key one by one: there, a hot key, a backlog of millions and the database's time by
# shards show nothing that the rate does not show.
USUAL = {
    Delivery.EXACTLY_ONCE: list(PARTS),
    Delivery.AT_LEAST_ONCE: ["throughput", "latency", "noisy", "idle", "sizes", "peer"],
}
# More memory and WAL than by default in the local stack. With less, Postgres would read a backlog from disk again and
# again, and log full pages after many checkpoints.
POSTGRES = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
WANTED = {
    "vs_ceiling": "≥ 0.85", "hot_key_vs_one_shard": "≥ 0.9", "p50_vs_floor": "≤ 1.5", "p99_vs_p50": "≤ 4",
    "p95_vs_p50": "≤ 2.5 where p99 is the client's", "noisy_p99_vs_quiet": "≤ 5",
    "future_p99_vs_quiet": "≤ 5", "idle_core_share": "≤ 0.1", "backlog_3m_vs_100k": "≥ 0.8",
    "worker_rss_mb": "≤ 400", "db_time_8_shards_vs_1": "≤ 1.3", "vs_goharvest": "≥ 20", "hot_key_vs_goharvest": "≥ 150",
}  # fmt: skip
# At least once sends the rows of a key one by one: a hot key needs exactly-once, and its limit here is low.
WANTED_AT_LEAST_ONCE = {
    "vs_goharvest": "≥ 5", "hot_key_vs_goharvest": "≥ 0.7", "p50_vs_goharvest": "≤ 1.5", "idle_core_share": "≤ 0.1",
    "worker_rss_mb": "≤ 400",
}  # fmt: skip
HOT_ROWS, PEERS_ROWS = 1_500, 20_000
BAD_ROWS, FUTURE_ROWS, NEW_TOPICS = 20_000, 300, 5
USUAL_ROWS = {Delivery.EXACTLY_ONCE: 600_000, Delivery.AT_LEAST_ONCE: 100_000}
PEERS_BROKER = "3.9.1"


class Bench:
    """The parts, over one stack."""

    def __init__(self, stack: Stack, options: argparse.Namespace) -> None:
        self.quick = options.quick
        self.rounds = options.rounds or (1 if options.quick else 3)
        self.rows = options.rows or USUAL_ROWS[Delivery(options.delivery)] // (2 if options.quick else 1)
        self.large = 600_000 if options.quick else 3_000_000
        self.ceiling_tuning: Tuning | None = None
        self.seconds = options.seconds or (10.0 if options.quick else 20.0)
        self.peer_binary: Path | None = options.peer_binary
        self.delivery = Delivery(options.delivery)
        self.producer = {"linger.ms": options.linger_ms, "compression.type": options.compression}
        self.stack = stack
        self.place = Place.of(stack, self.producer)
        self._aside: dict[int, str] = {}
        # Not counted: the first relay on a machine creates an archive of Spark's classes.
        self.relayed(rows=min(20_000, self.rows))

    def aside(self, value_bytes: int = VALUE_BYTES, rows: int | None = None) -> str:
        if value_bytes not in self._aside:
            self._aside[value_bytes] = self.place.prepare(rows or self.rows, value_bytes)
        return self._aside[value_bytes]

    def medians(self, sides: dict[str, Callable[[], float]]) -> Figures:
        return medians(in_turns(sides, self.rounds, tell=measured))

    def relayed(
        self,
        *,
        shards: int = SHARDS,
        rows: int | None = None,
        key: str | None = None,
        topics: int = 1,
        value_bytes: int = VALUE_BYTES,
        part: tuple[int, int] | None = None,
        sample: Callable[[int], Any] = lambda _: None,
    ) -> Watched:
        """Measure a relay on a backlog; with `part`, only from its first number of rows to its second."""
        slow = key is not None and self.delivery is Delivery.AT_LEAST_ONCE
        rows = HOT_ROWS if slow else rows or self.rows
        names = self.place.new_topics(topics)
        self.place.fill(self.aside(value_bytes), names, rows=rows, key=key)
        with self.relay(shards) as process:
            if slow:
                return tally(self.place, names, rows)
            first, last = part or (WARM_SHARE * rows, rows)
            watched = watch(self.place, names, last, warm_share=first / last, sample=lambda: sample(process))
            if part is None:
                self.place.drained()
                return without_markers(self.place, names, rows, watched)
        return watched

    def relay(self, shards: int = SHARDS) -> AbstractContextManager[int]:
        return relay(self.place, shards=shards, delivery=self.delivery)

    def throughput(self) -> Figures:
        aside = self.aside()

        def ceiling(tuning: Tuning) -> float:
            names = self.place.new_topics()
            self.place.fill(aside, names, rows=self.rows)
            with copying(self.place, names[0], tuning):
                watched = watch(self.place, names, self.rows)
                self.place.drained()
            return watched.per_second

        best = self.ceiling_tuning = tuned(self.rows, ceiling, say)
        figures = self.medians(
            {"rec_per_s": lambda: self.relayed().per_second, "ceiling_rec_per_s": lambda: ceiling(best)}
        )
        return {**figures, "vs_ceiling": figures["rec_per_s"] / figures["ceiling_rec_per_s"]}

    def hot_key(self) -> Figures:
        figures = self.medians(
            {
                "hot_key_rec_per_s": lambda: self.relayed(key="hot").per_second,
                "one_shard_rec_per_s": lambda: self.relayed(shards=1).per_second,
            }
        )
        return {**figures, "hot_key_vs_one_shard": figures["hot_key_rec_per_s"] / figures["one_shard_rec_per_s"]}

    def latency(self) -> Figures:
        rounds = []
        for _ in range(self.rounds):
            plain = latencies(self.place, lambda topic: polling(self.place, topic), self.seconds)
            ours = latencies(self.place, lambda _: self.relay(), self.seconds)
            floor, (p50, p95, p99) = cuts(plain), cuts(ours)
            say(
                f"latency: p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f}; floor: p50 {floor[0]:.1f}, "
                f"p95 {floor[1]:.1f}, p99 {floor[2]:.1f}"
            )
            rounds.append(
                {
                    "p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "floor_p50_ms": floor[0], "floor_p95_ms": floor[1],
                    "floor_p99_ms": floor[2], "p99_vs_floor_p99": p99 / floor[2],
                    "p50_vs_floor": p50 / floor[0], "p95_vs_p50": p95 / p50, "p99_vs_p50": p99 / p50,
                    **unhindered(ours, ""), **unhindered(plain, "floor_"),
                }
            )  # fmt: skip
        return middle(rounds)

    def noisy(self) -> Figures:
        def strangers(_: str) -> None:
            """Insert rows for as many missing topics, in one transaction."""
            self.place.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
                "SELECT 'missing-' || n, convert_to('stranger-' || n, 'UTF8'), '\\x00', '{}', '{}' "
                "FROM generate_series(1, %s) n",
                (BAD_ROWS,),
            )

        def future(topic: str) -> None:
            """Insert rows with a timestamp that the broker refuses, for the topic of the good ones."""
            self.place.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, "
                "kafka_timestamp) SELECT %s, convert_to('future-' || n, 'UTF8'), '\\x00', '{}', '{}', '2100-01-01' "
                "FROM generate_series(1, %s) n",
                (topic, FUTURE_ROWS),
            )

            # Not at once: by then, the shards know of thousands of missing topics.
            asked.append(max(self._first_row(topic, after_seconds=1.0) for topic in unused))

        def refused(_: str) -> None:
            """Insert rows without a key for a compacted topic, which the broker refuses."""
            self.place.execute(
                "INSERT INTO outbox (kafka_topic, kafka_value, kafka_header_keys, kafka_header_values) "
                "SELECT %s, '\\x00', '{}', '{}' FROM generate_series(1, %s) n",
                (compacted, FUTURE_ROWS),
            )

        def measured_p(noise: Callable[[str], None] | None) -> tuple[float, float, float]:
            return cuts(latencies(self.place, side, self.seconds, noise=noise))

        def side(_: str) -> AbstractContextManager[int]:
            return relay(self.place, "--grace-seconds", f"{self.seconds / 3:g}", delivery=self.delivery)

        rounds = []
        asked: list[float] = []
        for _ in range(self.rounds):
            unused = self.place.new_topics(NEW_TOPICS)
            compacted = self.place.new_topics(config={"cleanup.policy": "compact"})[0]
            quiet, noisy, dated, barred = (measured_p(noise) for noise in (None, strangers, future, refused))
            for name, found in (("quiet", quiet), ("noisy", noisy), ("future", dated), ("refused", barred)):
                say("{}: p50 {:.1f}, p95 {:.1f}, p99 {:.1f}".format(name, *found))
            say(f"first rows of topics that are new to the relay, beside missing ones: {asked[-1]:.0f} ms at most")
            rounds.append(
                {
                    "quiet_p50_ms": quiet[0], "quiet_p99_ms": quiet[2], "noisy_p50_ms": noisy[0],
                    "noisy_p99_ms": noisy[2], "noisy_p99_vs_quiet": noisy[2] / quiet[2], "future_p99_ms": dated[2],
                    "future_p99_vs_quiet": dated[2] / quiet[2], "noisy_p50_vs_quiet": noisy[0] / quiet[0],
                    "noisy_new_topic_ms": asked[-1], "refused_p50_ms": barred[0], "refused_p99_ms": barred[2],
                    "refused_p99_vs_quiet": barred[2] / quiet[2],
                }
            )  # fmt: skip
        return middle(rounds)

    def _first_row(self, topic: str, *, after_seconds: float) -> float:
        """Insert a row for a topic after a while, and return the milliseconds until the relay has removed it."""
        time.sleep(after_seconds)
        begun = time.monotonic()
        self.place.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            "VALUES (%s, 'first', '\\x00', '{}', '{}')",
            (topic,),
        )
        while self.place.execute("SELECT 1 FROM outbox WHERE kafka_topic = %s", (topic,)):
            if time.monotonic() - begun > PATIENCE_SECONDS:
                raise TimeoutError(f"the row of {topic} did not arrive")
            time.sleep(0.02)
        return (time.monotonic() - begun) * 1e3

    def idle(self) -> Figures:
        self.place.execute("TRUNCATE outbox RESTART IDENTITY")
        window = self.seconds / 2
        shares = []
        with self.relay() as process:
            time.sleep(15.0)  # it is up, and its start-up work is over
            for _ in range(3):
                begun, before = time.monotonic(), self._used(process)
                time.sleep(window)
                used = [after - each for after, each in zip(self._used(process), before, strict=True)]
                shares.append([each / (time.monotonic() - begun) for each in used])
        shares.sort(key=sum)
        relays, databases = shares[1]
        return {"idle_core_share": relays + databases, "idle_relay": relays, "idle_database": databases}

    def _used(self, process: int) -> list[float]:
        """Return the CPU time of a relay, and of its database sessions, so far."""
        sessions = self.place.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [cpu_seconds(tree(process)), cpu_seconds(pid for (pid,) in sessions)]

    def growth(self) -> Figures:
        figures = self.medians(
            {
                "backlog_100k_rec_per_s": lambda: self.relayed(rows=100_000).per_second,
                "backlog_3m_rec_per_s": lambda: self.relayed(rows=self.large).per_second,
            }
        )
        ratio = figures["backlog_3m_rec_per_s"] / figures["backlog_100k_rec_per_s"]
        backlog = 300_000 if self.quick else 1_000_000
        # By then batches have their full size: at both ends, the same number of rows is read and not settled yet.
        part = (backlog // 4, backlog * 6 // 10)

        def database_time(shards: int) -> float:
            server = tree(self.stack.postgres.server.pid)[0]
            watched = self.relayed(shards=shards, rows=backlog, part=part, sample=lambda _: cpu_seconds(tree(server)))
            return float((watched.last - watched.first) / watched.rows * 1e6)

        times = self.medians(
            {f"db_us_per_record_{shards}": lambda shards=shards: database_time(shards) for shards in (1, 2, 4, 8)}  # type: ignore[misc]
        )
        return {
            **figures, "backlog_3m_vs_100k": ratio, **times,
            "db_time_8_shards_vs_1": times["db_us_per_record_8"] / times["db_us_per_record_1"],
        }  # fmt: skip

    def sizes(self) -> Figures:
        figures: Figures = {}
        resident = []
        for value_bytes, rows in ((100, self.rows), (1_000, self.rows), (100_000, 1_000 if self.quick else 3_000)):
            self.aside(value_bytes, rows)
            watched = self.relayed(
                value_bytes=value_bytes, rows=rows, sample=lambda process: most_resident_mb(tree(process))
            )
            figures[f"rec_per_s_{value_bytes}_bytes"] = watched.per_second
            figures[f"mb_per_s_{value_bytes}_bytes"] = watched.per_second * value_bytes / 1e6
            if value_bytes == 1_000:
                resident.append(watched.last)
                more = self.relayed(
                    value_bytes=value_bytes, rows=3 * rows, sample=lambda process: most_resident_mb(tree(process))
                )
                resident.append(more.last)
        for topics in (1, 10, 100):
            figures[f"rec_per_s_{topics}_topics"] = self.relayed(topics=topics).per_second
        return {**figures, "worker_rss_mb": max(resident)}

    def peer(self) -> Figures:
        """Compare both on a broker version that goharvest supports, each with its own table shape."""
        if self.peer_binary is None:
            raise AssertionError("no peer was given")
        binary = self.peer_binary
        with durable_stack(POSTGRES, KafkaOptions(version=PEERS_BROKER)) as stack:
            theirs = Place.of(stack, self.producer, Shape.GOHARVEST)
            ours, self.place, self._aside = self.place, Place.of(stack, self.producer), {}
            aside = theirs.prepare(PEERS_ROWS)

            def reaped(rows: int, key: str | None = None) -> float:
                names = theirs.new_topics()
                theirs.fill(aside, names, rows=rows, key=key)
                with reaper(theirs, binary):
                    return watch(theirs, names, rows, committed=False).per_second

            figures = self.medians(
                {
                    "rec_per_s_39": lambda: self.relayed().per_second,
                    "goharvest_rec_per_s": lambda: reaped(PEERS_ROWS),
                    "hot_key_rec_per_s_39": lambda: self.relayed(key="hot").per_second,
                    "goharvest_hot_key_rec_per_s": lambda: reaped(HOT_ROWS, "hot"),
                }
            )
            rounds = []
            for _ in range(self.rounds):
                p50, _, p99 = cuts(latencies(theirs, lambda _: reaper(theirs, binary), self.seconds))
                our50, _, our99 = cuts(latencies(self.place, lambda _: self.relay(), self.seconds))
                rounds.append(
                    {
                        "goharvest_p50_ms": p50, "goharvest_p99_ms": p99, "p50_ms_39": our50, "p99_ms_39": our99,
                        "p50_vs_goharvest": our50 / p50,
                    }
                )  # fmt: skip
            self.place, self._aside = ours, {}
        return {
            **figures,
            "vs_goharvest": figures["rec_per_s_39"] / figures["goharvest_rec_per_s"],
            "hot_key_vs_goharvest": figures["hot_key_rec_per_s_39"] / figures["goharvest_hot_key_rec_per_s"],
            **middle(rounds),
        }


def chosen(options: argparse.Namespace) -> list[str]:
    """Return the parts to measure. Raises `SystemExit` if the peer is asked for without its program."""
    usual = USUAL[Delivery(options.delivery)]
    if options.peer_binary is None:
        if "peer" in (options.only or "").split(","):
            raise SystemExit("--only peer needs --peer-binary PATH")
        usual = [part for part in usual if part != "peer"]
    return chosen_parts(options, PARTS, usual=usual)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delivery", default="exactly-once", choices=[each.value for each in Delivery])
    parser.add_argument("--quick", action="store_true", help="one round of fewer rows, and shorter latency parts")
    add_parts(parser, PARTS)
    parser.add_argument("--rows", type=int, help="rows of the usual backlog")
    parser.add_argument("--rounds", type=int, help="measurements of each side")
    parser.add_argument("--seconds", type=float, help="how long rows come at random times, after the warm-up")
    parser.add_argument("--linger-ms", type=float, default=0)
    parser.add_argument("--compression", default="lz4")
    parser.add_argument("--peer-binary", type=Path, help="goharvest's reaper")
    options = parser.parse_args()
    if options.peer_binary is not None and not options.peer_binary.is_file():
        raise SystemExit(f"--peer-binary: there is no {options.peer_binary}")
    measured_parts = chosen(options)
    logging.disable(logging.WARNING)
    figures: Figures = {}
    with durable_stack(POSTGRES) as stack:
        bench = Bench(stack, options)
        for name in measured_parts:
            say(f"== {name}")
            figures |= getattr(bench, name.replace("-", "_"))()
    limits = Limits()
    batch = limits.mark_rows if bench.delivery is Delivery.AT_LEAST_ONCE else limits.batch_rows
    settings = {
        "delivery": bench.delivery, "rows": bench.rows, "value_bytes": VALUE_BYTES, "headers": 1, "keys": KEYS,
        "topics": 1, "partitions": PARTITIONS, "shards": SHARDS, "batch_rows": batch, "warm_share": WARM_SHARE,
        "rounds": bench.rounds, "large_backlog_rows": bench.large, "latency_rows_per_s": PER_SECOND,
        "latency_seconds": bench.seconds, "latency_warm_seconds": WARM_SECONDS, "linger_ms": options.linger_ms,
        "compression": options.compression, "acks": "all", "ceiling": str(bench.ceiling_tuning or ""),
        "goharvest_rows": PEERS_ROWS, "goharvest_hot_key_rows": HOT_ROWS,
    }  # fmt: skip
    note = (
        f"{bench.rows:,} rows, {VALUE_BYTES}-byte values, one header, {KEYS:,} keys, 1 topic, {PARTITIONS} partitions, "
        f"{SHARDS} shards, {batch:,} rows a batch at most, where a part does not say otherwise; "
        f"warm-up {WARM_SHARE:.0%} of the rows, {bench.rounds} rounds; the database's time between a quarter and six "
        f"tenths of its backlog; the large backlog has {bench.large:,} rows; "
        f"latency at {PER_SECOND} rows/s for {bench.seconds:g} s after {WARM_SECONDS:g} s; linger "
        f"{options.linger_ms:g} ms, compression {options.compression}, acks all; goharvest: its defaults, "
        f"{PEERS_ROWS:,} rows, {HOT_ROWS:,} of one key"
    )
    report(
        f"relay, {bench.delivery}; durable Postgres 18, 256 MB of buffers, 4 GB of WAL, one broker",
        figures,
        wanted=WANTED if bench.delivery is Delivery.EXACTLY_ONCE else WANTED_AT_LEAST_ONCE,
        settings=settings,
        note=note,
    )


if __name__ == "__main__":
    main()
