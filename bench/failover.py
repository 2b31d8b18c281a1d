"""The time without deliveries when the leader is killed, or stopped, with a warm standby.

    ./run bench failover [--rounds N] [--delivery GUARANTEE] [--peer-binary PATH]

Two programs, as a user starts them, run under a steady load of single rows, with the default time-outs. The leader is
ended by SIGKILL, or by SIGTERM. The figure is the longest time between two records of a reader of committed records,
from just before the signal on. With goharvest's `reaper`, the same for two reapers, on a broker version that it
supports, for a reader of all records. Medians of the rounds; the last line printed is one JSON object.
"""

import argparse
import itertools
import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from bench.measuring.parts import add_parts, chosen_parts
from bench.measuring.place import durable_stack
from bench.measuring.report import measured, report
from bench.measuring.rounds import Figures, in_turns, medians
from bench.relays.place import PARTITIONS, Place
from bench.relays.sides import reaper_command
from thresher.cli.demo.process import environment_with
from thresher.devstack.broker import KafkaOptions
from thresher.election.neli_clients import session_seconds
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.outbox import Message, Outbox, Shape

PER_SECOND = 100.0
UP_SECONDS, STEADY_SECONDS = 90.0, 2.0
PEERS_BROKER = "3.9.1"
WANTED = {"gap_lease_s": "≤ 3", "gap_neli_s": "≤ 8", "gap_graceful_s": "≤ 2", "gap_graceful_neli_s": "≤ 2"}
SIDES = {
    "gap_lease_s": (ElectionKind.LEASE, signal.SIGKILL),
    "gap_neli_s": (ElectionKind.NELI, signal.SIGKILL),
    "gap_graceful_s": (ElectionKind.LEASE, signal.SIGTERM),
    "gap_graceful_neli_s": (ElectionKind.NELI, signal.SIGTERM),
}


class Program:
    """One competitor, and its log."""

    def __init__(self, command: list[str], *, dsn: str | None = None) -> None:
        """`dsn` is the database of a program of ours."""
        self._said = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - closed with it
        self.process = subprocess.Popen(
            command, stdout=self._said, stderr=self._said, env=None if dsn is None else environment_with(dsn)
        )

    def said(self) -> str:
        return Path(self._said.name).read_text(errors="replace")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the program runs."""
        deadline = time.monotonic() + UP_SECONDS
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"the program did not get this far: {self.said()[-3000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._said.close()


class Load:
    """Writes single rows at an even rate, and notes when records arrive."""

    def __init__(self, place: Place, *, committed: bool) -> None:
        self._place, self._committed = place, committed
        (self._topic,) = place.new_topics()
        self.arrived: list[float] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _write(self) -> None:
        outbox = Outbox("outbox", shape=self._place.shape)
        due = time.monotonic()
        number = 0
        with psycopg.connect(self._place.dsn) as connection:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                due += 1 / PER_SECOND
                number += 1
                outbox.stash(connection, Message(topic=self._topic, key=f"key-{number % 100}", value="v" * 100))
                connection.commit()

    def _read(self) -> None:
        level = "read_committed" if self._committed else "read_uncommitted"
        consumer = Consumer(
            {
                "bootstrap.servers": self._place.bootstrap, "group.id": f"bench-{self._topic}",
                "isolation.level": level, "enable.auto.commit": False, "fetch.wait.max.ms": 5,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(self._topic, part, OFFSET_END) for part in range(PARTITIONS)])
        while not self._over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.arrived.append(time.monotonic())
        consumer.close()

    def flowing(self, since: float = 0.0) -> bool:
        """Whether records have come at the expected rate for a while."""
        now = time.monotonic()
        recent = [each for each in self.arrived if each > max(since, now - STEADY_SECONDS)]
        return now - since > STEADY_SECONDS and len(recent) > 0.5 * PER_SECOND * STEADY_SECONDS

    def steady_since(self, moment: float) -> bool:
        """Whether records come again, counting only those half a second or more after the leader's end at `moment`."""
        late = [each for each in self.arrived if each > moment + 0.5]
        return len(late) > 2 * PER_SECOND

    def gap(self, since: float) -> float:
        """Return the longest time without a record, from one second before `since` on."""
        times = [each for each in self.arrived if each > since - 1.0]
        return max(after - before for before, after in itertools.pairwise(times))


def measure(
    place: Place, make: Callable[[], Program], ending: signal.Signals, *, ready: str | None, committed: bool = True
) -> float:
    """Start a leader and a standby, end the leader, and return the time without deliveries."""
    place.execute("TRUNCATE outbox RESTART IDENTITY")
    with ExitStack() as open_, Load(place, committed=committed) as load:
        leader = make()
        open_.callback(leader.close)
        leader.until(load.flowing)
        standby = make()
        open_.callback(standby.close)
        if ready is not None:
            standby.until(lambda: ready in standby.said())
        time.sleep(STEADY_SECONDS)
        began = time.monotonic()
        leader.until(lambda: load.flowing(began))
        ended = time.monotonic()
        leader.process.send_signal(ending)
        standby.until(lambda: load.steady_since(ended))
        return load.gap(ended)


def ours(place: Place, election: ElectionKind, delivery: str) -> Callable[[], Program]:
    command = [
        sys.executable, "-m", "thresher", "run", "--name", place.new_name(),
        "--bootstrap", place.bootstrap, "--election", election, "--status", "off", "--shape", place.shape.value,
    ]  # fmt: skip
    if delivery != "exactly-once":
        command += ["--delivery", delivery]
    return lambda: Program(command, dsn=place.dsn)


@contextmanager
def reapers(place: Place, binary: Path) -> Iterator[Callable[[], Program]]:
    with reaper_command(place, binary) as command:
        yield lambda: Program(command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    add_parts(parser, list(SIDES))
    parser.add_argument("--delivery", default="exactly-once", choices=["exactly-once", "at-least-once"])
    parser.add_argument("--peer-binary", type=Path, help="goharvest's reaper")
    options = parser.parse_args()
    if options.peer_binary is not None and not options.peer_binary.is_file():
        raise SystemExit(f"--peer-binary: there is no {options.peer_binary}")
    asked = chosen_parts(options, list(SIDES))
    logging.disable(logging.WARNING)
    with durable_stack() as stack:
        place = Place.of(stack, {})

        def gap(election: ElectionKind, ending: signal.Signals) -> float:
            return measure(place, ours(place, election, options.delivery), ending, ready="Spark is ready")

        chosen = {name: partial(gap, *SIDES[name]) for name in asked}
        figures: Figures = medians(in_turns(chosen, options.rounds, tell=measured))
    if options.peer_binary is not None:
        with durable_stack(kafka=KafkaOptions(version=PEERS_BROKER)) as stack:
            theirs = Place.of(stack, {}, Shape.GOHARVEST)
            with reapers(theirs, options.peer_binary) as make:

                def peers_gap() -> float:
                    return measure(theirs, make, signal.SIGKILL, ready=None, committed=False)

                figures |= medians(in_turns({"gap_goharvest_s": peers_gap}, options.rounds, tell=measured))
    settings = ElectionSettings()
    told = {
        "delivery": options.delivery, "rounds": options.rounds, "rows_per_s": PER_SECOND,
        "lease_seconds": settings.lease_seconds, "heartbeat_timeout_seconds": settings.heartbeat_timeout_seconds,
    }  # fmt: skip
    note = (
        f"lease {settings.lease_seconds:g} s; heartbeat time-out {settings.heartbeat_timeout_seconds:g} s, session "
        f"{session_seconds(settings.heartbeat_timeout_seconds):g} s; {PER_SECOND:g} rows/s, {options.rounds} rounds"
    )
    title = f"seconds without deliveries, {options.delivery}"
    report(title, figures, wanted=WANTED, settings=told, note=note)


if __name__ == "__main__":
    main()
