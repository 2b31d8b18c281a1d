"""The cost of queues on Kafka, compared with plain programs that do the same, and with Kafka's own share groups.

    ./run bench queue [--quick] [--rounds N] [--messages N]

    receiving   a backlog of one queue, received and acked: through a service; one message at a time, as kafka-mq-go
                does it (fewer messages); by a share group
    sending     `send_async` and `flush`, against a plain producer with the same properties and a delivery callback
    latency     single messages at random times, against the floor: a plain loop with the same transaction
    many        a thousand queues on one topic, ten of them consumed in one service

Every side has its own process and topics, and is counted after its own warm-up. Figures are medians of the rounds, in
which the sides take turns; the ratio of latencies is the median of the rounds' ratios. The last line printed is one
JSON object: the figures, and the settings of the measurement.
"""

# ruff: noqa: E402
import sys
from pathlib import Path

# Python puts this file's folder first on the path, where `queue` would be this file and not the standard library's.
sys.path[:] = [place for place in sys.path if place != str(Path(__file__).parent)]

import argparse
import logging

from bench.measuring.parts import add_parts, chosen_parts
from bench.measuring.place import durable_stack
from bench.measuring.report import measured, report, say
from bench.measuring.rounds import Figures, in_turns, medians, middle
from bench.queues import receiving, sending
from bench.queues.latency import PER_SECOND, WARM_SECONDS, by_plain_loop, p50_ms, through_service
from bench.queues.many import CONSUMED, QUEUES, consume_few, queue_ids
from bench.queues.place import PARTITIONS, PAYLOAD_BYTES, WARM_SHARE, Learnt, Place, learn, outcome
from thresher.devstack.broker import KafkaOptions

WANTED = {"vs_one_by_one": "≥ 25", "send_async_vs_bare": "≥ 0.5", "p50_vs_floor": "≤ 1.8"}
# One message at a time is slow, so that side gets only this fraction of the messages.
ONE_OF = 100
# Share groups keep their state in a topic, which has three replicas by default.
BROKER = KafkaOptions(
    properties={
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
    }
)


PARTS = ("receiving", "sending", "latency", "many")


class Bench:
    """The parts, over one broker."""

    def __init__(self, bootstrap: str, options: argparse.Namespace) -> None:
        self.bootstrap = bootstrap
        self.rounds = options.rounds or (1 if options.quick else 3)
        self.messages = options.messages or (30_000 if options.quick else 100_000)
        self.one_by_one_messages = max(100, self.messages // ONE_OF)
        self.seconds = 5.0 if options.quick else 10.0
        self.learnt: Learnt = learn(bootstrap)

    def backlog(self, messages: int, queues: list[bytes] | None = None) -> Place:
        place = Place.new(self.bootstrap)
        if queues:
            place.fill(self.learnt.producer, messages, queues)
        else:
            place.fill(self.learnt.producer, messages)
        return place

    def receiving(self) -> Figures:
        few, learnt = self.one_by_one_messages, self.learnt

        def ours() -> float:
            return float(outcome(receiving.through_service, self.backlog(self.messages), self.messages))

        def one_by_one() -> float:
            return float(outcome(receiving.one_by_one, self.backlog(few), learnt, few))

        def share_group() -> float:
            return float(outcome(receiving.by_share_group, self.backlog(self.messages), self.messages))

        found = medians(
            in_turns(
                {"messages_per_s": ours, "one_by_one_per_s": one_by_one, "share_group_per_s": share_group},
                self.rounds,
                tell=measured,
            )
        )
        return {
            "messages_per_s": found["messages_per_s"],
            "vs_one_by_one": found["messages_per_s"] / found["one_by_one_per_s"],
            "share_group_per_s": found["share_group_per_s"],
        }

    def sending(self) -> Figures:
        count, learnt = self.messages, self.learnt
        found = medians(
            in_turns(
                {
                    "send_async_per_s": lambda: outcome(sending.through_service, Place.new(self.bootstrap), count),
                    "bare_loop_per_s": lambda: outcome(sending.by_loop, Place.new(self.bootstrap), learnt, count),
                    "bare_thread_per_s": lambda: outcome(sending.by_thread, Place.new(self.bootstrap), learnt, count),
                },
                self.rounds,
                tell=measured,
            )
        )
        bare = max(found["bare_loop_per_s"], found["bare_thread_per_s"])
        return {"send_async_vs_bare": found["send_async_per_s"] / bare}

    def latency(self) -> Figures:
        sides = {
            "p50_ms": lambda: p50_ms(self.backlog(1), through_service, self.seconds),
            "floor_p50_ms": lambda: p50_ms(self.backlog(1), by_plain_loop, self.seconds, self.learnt),
        }
        found = in_turns(sides, self.rounds, tell=measured)
        return middle(
            [
                {"p50_ms": ours, "p50_vs_floor": ours / floor}
                for ours, floor in zip(found["p50_ms"], found["floor_p50_ms"], strict=True)
            ]
        )

    def many(self) -> Figures:
        def few() -> Figures:
            rate, fetched = outcome(consume_few, self.backlog(self.messages, queue_ids()), self.messages)
            say(f"many_queues_per_s: {rate:,.0f}; bytes_read_per_message: {fetched:,.0f}")
            return {"many_queues_per_s": rate, "bytes_read_per_message": fetched}

        return middle(in_turns({"many": few}, self.rounds)["many"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--messages", type=int, help="messages of a backlog, and of a round of sends; 5,000 or more")
    add_parts(parser, PARTS)
    options = parser.parse_args()
    chosen = chosen_parts(options, PARTS)
    if options.messages is not None and options.messages < 5 * QUEUES:
        raise SystemExit(f"--messages: {5 * QUEUES:,} or more are needed: each of {QUEUES:,} queues gets some")
    logging.disable(logging.WARNING)
    figures: Figures = {}
    with durable_stack(kafka=BROKER) as stack:
        bench = Bench(stack.kafka.bootstrap, options)
        for name in chosen:
            say(f"== {name}")
            figures |= getattr(bench, name)()
    settings = {
        "messages": bench.messages, "payload_bytes": PAYLOAD_BYTES, "queues": 1, "partitions": PARTITIONS,
        "marker_partitions": PARTITIONS, "warm_share": WARM_SHARE, "rounds": bench.rounds,
        "one_by_one_messages": bench.one_by_one_messages, "latency_messages_per_s": PER_SECOND,
        "latency_seconds": bench.seconds, "latency_warm_seconds": WARM_SECONDS, "many_queues": QUEUES,
        "many_consumed": CONSUMED, "linger_ms": bench.learnt.producer["linger.ms"],
        "compression": bench.learnt.producer["compression.type"], "acks": "all",
    }  # fmt: skip
    note = (
        f"{bench.messages:,} messages, {PAYLOAD_BYTES}-byte payloads, 1 queue, {PARTITIONS} partitions of messages and "
        f"of markers, where a part does not say otherwise; each side in its own process, with topics of its own; "
        f"warm-up: {WARM_SHARE:.0%} of a side's messages, {WARM_SECONDS:g} s of latency's; {bench.rounds} rounds; one "
        f"by one: {bench.one_by_one_messages:,} messages; sends: linger {bench.learnt.producer['linger.ms']} ms, "
        f"compression {bench.learnt.producer['compression.type']}, acks all, a callback per message, the bare producer "
        f"by the faster of a poll per message and a thread; latency: {PER_SECOND} messages/s for {bench.seconds:g} s, "
        f"both sides acked by an End that nobody waits for; many: {bench.messages:,} messages of {QUEUES:,} queues, "
        f"{CONSUMED} consumed in one service, from the moment when the last consumer is warm; share group: one "
        "consumer, each message acknowledged by itself"
    )
    order = (
        "messages_per_s", "vs_one_by_one", "send_async_vs_bare", "p50_ms", "p50_vs_floor", "many_queues_per_s",
        "bytes_read_per_message", "share_group_per_s",
    )  # fmt: skip
    report(
        "queues; one broker",
        {name: figures[name] for name in order if name in figures},
        wanted=WANTED,
        settings=settings,
        note=note,
    )


if __name__ == "__main__":
    main()
