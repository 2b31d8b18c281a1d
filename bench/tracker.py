"""The redelivery tracker's cost: markers a second, memory, and the times of redelivery, rebuild and take-over.

    ./run bench tracker [--quick] [--rounds N] [--messages N]

    reading      Starts and Ends of one partition through one shard, as they are written, against a plain loop that
                 consumes the same number
    growth       the same with a million messages in progress, against a thousand; and their memory
    rebuild      from a take-over until the tracker decides, with a million messages in progress
    redelivery   from a message's deadline until it is in its queue, for single messages
    take-over    from a kill -9 of the leader until its standby decides, with no message in progress

Each side is a separate program, as a user starts it. Figures are medians of the rounds, in which the sides take turns.
The last line printed is one JSON object: the figures, and the settings of the measurement.
"""

import argparse
import logging
from typing import Any

from bench.measuring.parts import add_parts, chosen_parts
from bench.measuring.place import durable_stack
from bench.measuring.report import measured, report, say
from bench.measuring.rounds import Figures, in_turns, medians, middle
from bench.trackers.place import PAYLOAD_BYTES, MarkerPlace
from bench.trackers.sides import (
    REDELIVER_MS,
    WARM_SHARE,
    bare,
    rebuild_seconds,
    redelivery_ms,
    take_over_seconds,
    tracked,
)

WANTED = {
    "vs_bare_consume": "≥ 0.15", "rate_1m_vs_1k": "≥ 0.6", "bytes_per_message": "≤ 1536", "redelivery_p99_ms": "≤ 1000",
    "rebuild_1m_s": "≤ 60", "take_over_s": "≤ 10",
}  # fmt: skip
FEW, MEMORY_MB = 1_000, 3_072
PER_SECOND = 50.0


PARTS = ("reading", "growth", "rebuild", "redelivery", "take_over")


class Bench:
    """The parts, over one broker."""

    def __init__(self, bootstrap: str, options: argparse.Namespace) -> None:
        self.bootstrap = bootstrap
        self.rounds = options.rounds or (1 if options.quick else 3)
        self.messages = options.messages or (150_000 if options.quick else 300_000)
        self.many = 200_000 if options.quick else 1_000_000
        self.singles = 200 if options.quick else 1_000

    def reading(self) -> Figures:
        found = medians(
            in_turns(
                {
                    "markers_per_s": lambda: self._tracked(0)[0],
                    "bare_per_s": lambda: bare(MarkerPlace.new(self.bootstrap), self.messages),
                },
                self.rounds,
                tell=measured,
            )
        )
        return {
            "markers_per_s": found["markers_per_s"],
            "vs_bare_consume": found["markers_per_s"] / found["bare_per_s"],
        }

    def growth(self) -> Figures:
        def one() -> Figures:
            sides: dict[int, tuple[float, float]] = {}
            for held in (FEW, self.many):
                rate, page = self._tracked(held)
                sides[held] = (rate, page["shards"][0]["memory_bytes"])
                measured(f"markers_per_s with {held:,} in progress", rate)
            (few_rate, few_bytes), (many_rate, many_bytes) = sides[FEW], sides[self.many]
            each = (many_bytes - few_bytes) / (self.many - FEW)
            return {"rate_1m_vs_1k": many_rate / few_rate, "bytes_per_message": each - PAYLOAD_BYTES}

        return middle([one() for _ in range(self.rounds)])

    def rebuild(self) -> Figures:
        place = MarkerPlace.new(self.bootstrap)
        place.start(self.many)
        found = in_turns(
            {"rebuild_1m_s": lambda: rebuild_seconds(place, memory_mb=MEMORY_MB)}, self.rounds, tell=measured
        )
        return medians(found)

    def redelivery(self) -> Figures:
        def one() -> Figures:
            p50, p99 = redelivery_ms(MarkerPlace.new(self.bootstrap), self.singles, PER_SECOND)
            say(f"redelivery: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
            return {"redelivery_p50_ms": p50, "redelivery_p99_ms": p99}

        return middle([one() for _ in range(self.rounds)])

    def take_over(self) -> Figures:
        sides = {"take_over_s": lambda: take_over_seconds(MarkerPlace.new(self.bootstrap))}
        return medians(in_turns(sides, self.rounds, tell=measured))

    def _tracked(self, held: int) -> tuple[float, dict[str, Any]]:
        return tracked(MarkerPlace.new(self.bootstrap), held, self.messages, memory_mb=MEMORY_MB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages; a fifth of those in progress")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--messages", type=int, help="messages that are started and ended in a round")
    add_parts(parser, PARTS)
    options = parser.parse_args()
    chosen = chosen_parts(options, PARTS)
    logging.disable(logging.WARNING)
    figures: Figures = {}
    with durable_stack() as stack:
        bench = Bench(stack.kafka.bootstrap, options)
        for name in chosen:
            say(f"== {name}")
            figures |= getattr(bench, name.replace("-", "_"))()
    settings = {
        "messages": bench.messages, "payload_bytes": PAYLOAD_BYTES, "in_progress": bench.many, "in_progress_few": FEW,
        "partitions": 1, "marker_partitions": 1, "shards": 1, "memory_mb": MEMORY_MB, "warm_share": WARM_SHARE,
        "rounds": bench.rounds, "redelivery_timeout_ms": REDELIVER_MS, "single_messages": bench.singles,
        "single_messages_per_s": PER_SECOND,
    }  # fmt: skip
    note = (
        f"{bench.messages:,} messages started and ended, {PAYLOAD_BYTES}-byte payloads, 1 partition of markers, 1 "
        f"shard; counted from the first to the ninth tenth; {bench.many:,} in progress against {FEW:,}; redelivery: "
        f"{bench.singles:,} messages at {PER_SECOND:g}/s, {REDELIVER_MS} ms after their Starts; take-over: two "
        f"programs elected by NELI, with its usual time-outs; {bench.rounds} rounds"
    )
    order = (
        "markers_per_s", "vs_bare_consume", "rate_1m_vs_1k", "bytes_per_message", "redelivery_p50_ms",
        "redelivery_p99_ms", "rebuild_1m_s", "take_over_s",
    )  # fmt: skip
    report(
        "the tracker; one broker",
        {name: figures[name] for name in order if name in figures},
        wanted=WANTED,
        settings=settings,
        note=note,
    )


if __name__ == "__main__":
    main()
