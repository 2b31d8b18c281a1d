"""`thresher demo`: relays an outbox to Kafka, kills the relay with `kill -9` meanwhile, and gives a verdict."""

import contextlib
import math
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from thresher.cli.demo.process import DemoProcess
from thresher.cli.demo.report import Passage, course, page
from thresher.cli.output import complain, err, fetching, out, table
from thresher.cli.status import RelayUnreachable, ask
from thresher.core.signals import stopped_by_signals
from thresher.db import TableName
from thresher.devstack.ports import free_port
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import create_schema
from thresher.testing.checker import Verdict, check
from thresher.testing.history import Outcome, read_history
from thresher.testing.pump import Fleet, Plan, Tally
from thresher.testing.reading import follow_topic, read_topics, rows_held

_TOPIC = "demo.orders"
_TABLE = TableName(table="outbox")
# Rows written per second, the longest time of writing, and the share of rows at which the relay is killed.
_RATE, _SECONDS = 650.0, 30.0
_KILL_SHARE = 0.6
_LOOK_SECONDS = 0.25
# Generous: on a slow machine, the killed relay needs a minute to start again.
_DRAIN_SECONDS = 180.0


@dataclass
class Scene:
    """The state of the demo."""

    records: int
    tally: Tally = field(default_factory=Tally)
    # When the relay was killed, by the monotonic clock, in nanoseconds.
    kills: list[int] = field(default_factory=list)
    # When each record was read, by its identity.
    arrivals: dict[str, int] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    doing: str = "starting the relay on Spark"


def show(records: int, report: Path) -> bool:
    """Start all processes, kill the relay, give a verdict, write the report, and clean up.

    Returns False if the verdict is not clean.
    """
    # SIGTERM too: the relay is a child process, and would go on without its parent.
    with stopped_by_signals(_interrupt):
        return _show(records, report)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _show(records: int, report: Path) -> bool:
    with fetching() as progress, err.status("starting Postgres and Kafka"):
        stack = Stack(progress=progress)
        stack.start()
    try:
        out.print(f"Postgres on port {stack.postgres.port} and Kafka on {stack.kafka.bootstrap} are up")
        Admin(stack.kafka.bootstrap).create_topic(_TOPIC, partitions=4)
        dsn = stack.postgres.create_database("demo")
        with psycopg.connect(dsn) as connection:
            create_schema(connection, _TABLE)
        with tempfile.TemporaryDirectory(prefix="thresher-demo-") as directory:
            return _play(stack, dsn, records, Path(directory), report)
    finally:
        stack.stop()


def _play(stack: Stack, dsn: str, records: int, directory: Path, report: Path) -> bool:
    history = directory / "history.jsonl"
    scene = Scene(records=records)
    at = f"127.0.0.1:{free_port()}"
    run = ["run", "--name", "demo", "--bootstrap", stack.kafka.bootstrap, "--status", at]
    relay = DemoProcess("relay", run, directory / "relay.log", dsn=dsn)
    plan = Plan(
        dsn=dsn,
        records=records,
        keys=200,
        topic=_TOPIC,
        writers=2,
        transaction_rows=10,
        rollback_share=0.1,
        rate=max(_RATE, records / _SECONDS),
        skew=0.8,
        run=secrets.token_hex(4),
        history=history,
    )
    fleet = Fleet(plan)
    pump = threading.Thread(target=_pump, args=(fleet, scene), daemon=True)
    with relay, _following(stack.kafka.bootstrap, scene), Live(_panel(scene, None), console=err) as live:
        relay.start()
        _await_relay(relay, at, scene)
        pump.start()
        try:
            _watch(relay, at, scene, pump, live, history)
        finally:
            fleet.stop()
            pump.join()
        relay.stop()
    with psycopg.connect(dsn, autocommit=True) as connection:
        held = rows_held(connection, _TABLE)
    reads = read_topics(stack.kafka.bootstrap, [_TOPIC])
    verdict = check(read_history(history), reads, dead=held.dead, pending=held.pending, filtered=set())
    _write_report(scene, verdict, history, report)
    return _judge(scene, verdict, _latencies(scene, history))


def _await_relay(relay: DemoProcess, at: str, scene: Scene) -> None:
    """Wait until each shard has committed its first transaction, which claims its progress partition."""
    while not scene.status.get("shards") or not all(shard["transactions"] for shard in scene.status["shards"]):
        time.sleep(_LOOK_SECONDS)
        relay.require_alive()
        with contextlib.suppress(RelayUnreachable):
            scene.status = ask(at)
    scene.doing = "relaying"


def _watch(
    relay: DemoProcess, at: str, scene: Scene, pump: threading.Thread, live: Live, history: Path
) -> None:  # fmt: skip
    """Wait until all rows have arrived; kill the relay once meanwhile."""
    deadline = math.inf
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        relay.require_alive()
        with contextlib.suppress(RelayUnreachable):
            scene.status = ask(at)
        if not scene.kills and scene.tally.rows >= _KILL_SHARE * scene.records and scene.status.get("relayed"):
            relay.kill()
            scene.kills.append(time.monotonic_ns())
            scene.status = {}
            scene.doing = "the relay was killed with -9, and started again"
            relay.start()
        elif scene.kills and scene.status.get("relayed"):
            scene.doing = "relaying again"
        if not pump.is_alive():
            deadline = min(deadline, time.monotonic() + _DRAIN_SECONDS)
            if scene.status.get("pending") == 0 and len(scene.arrivals) >= scene.tally.committed:
                deadline = 0.0
        live.update(_panel(scene, _latencies(scene, history)))


def _pump(fleet: Fleet, scene: Scene) -> None:
    def tell(tally: Tally) -> None:
        scene.tally = tally

    scene.tally = fleet.run(tell)


@contextlib.contextmanager
def _following(bootstrap: str, scene: Scene) -> Iterator[None]:
    """Read committed records as they come, and note the times."""
    over = threading.Event()

    def follow() -> None:
        for identity in follow_topic(bootstrap, _TOPIC, over):
            scene.arrivals.setdefault(identity, time.monotonic_ns())

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join(10.0)


def _ways(scene: Scene, history: Path) -> list[tuple[int, int]]:
    """Return when each row that has arrived was committed and read, in nanoseconds of the monotonic clock."""
    if not history.exists():
        return []
    return [
        (transaction.end, scene.arrivals[identity])
        for transaction in read_history(history)
        if transaction.outcome is Outcome.COMMITTED and transaction.end is not None
        for identity in transaction.identities()
        if identity in scene.arrivals
    ]


def _latencies(scene: Scene, history: Path) -> tuple[float, float] | None:
    """Return p50 and p99 of the milliseconds from a row's commit to its reader, for the rows that have arrived."""
    waits = sorted((read - committed) / 1e6 for committed, read in _ways(scene, history))
    return (waits[len(waits) // 2], waits[int(len(waits) * 0.99)]) if waits else None


def _write_report(scene: Scene, verdict: Verdict, history: Path, report: Path) -> None:
    """Write the report, and print its path. If it cannot be written, the demo's verdict stays valid."""
    ways = _ways(scene, history)
    began = min((committed for committed, _ in ways), default=0)

    def seconds(at: int) -> float:
        return max(0.0, (at - began) / 1e9)

    shown = course(Passage(committed=seconds(committed), read=seconds(read)) for committed, read in ways)
    facts = [
        ("written", f"{verdict.committed:,} rows"),
        ("rolled back", f"{verdict.rolled_back:,} rows"),
        ("read", f"{verdict.read:,} records"),
        ("kill -9 of the relay", str(len(scene.kills))),
        ("verdict", verdict.line()),
    ]
    try:
        report.write_text(page("Thresher's demo: Postgres to Kafka", shown, [*map(seconds, scene.kills)], facts))
    except OSError as error:
        complain(f"no report was written to {report}: {error.strerror}; name another place with --report")
    else:
        out.print(f"plots of rate, pending rows and latency: {report}", soft_wrap=True, highlight=False)


def _panel(scene: Scene, latencies: tuple[float, float] | None) -> Panel:
    status = scene.status
    grid = Table.grid(padding=(0, 3))
    oldest = status.get("oldest_pending_seconds")
    pairs = [
        ("written", f"{scene.tally.committed:,}"),
        ("rolled back", f"{scene.tally.rolled_back:,}"),
        ("relayed", f"{len(scene.arrivals):,}"),
        ("pending", "?" if status.get("pending") is None else f"{status['pending']:,}"),
        ("oldest", "-" if oldest is None else f"{oldest:.2f} s"),
        ("rec/s", f"{status.get('rows_per_s', 0):,.0f}"),
        ("latency p50 / p99", "-" if latencies is None else f"{latencies[0]:,.0f} / {latencies[1]:,.0f} ms"),
    ]
    grid.add_row(*(f"[bold]{name}[/]" for name, _ in pairs))
    grid.add_row(*(value for _, value in pairs))
    return Panel(grid, title=f"Postgres → Spark → Kafka: {scene.doing}", title_align="left")


def _judge(scene: Scene, verdict: Verdict, latencies: tuple[float, float] | None) -> bool:
    p50, p99 = latencies or (math.nan, math.nan)
    table(
        "What happened",
        ["written", "rolled back", "read", "kills", "latency p50", "p99 with the kill"],
        [
            [
                f"{verdict.committed:,}",
                f"{verdict.rolled_back:,}",
                f"{verdict.read:,}",
                str(len(scene.kills)),
                f"{p50:,.1f} ms",
                f"{p99:,.0f} ms",
            ]
        ],
    )
    for fault, examples in verdict.examples.items():
        for example in examples:
            complain(f"{fault}: {example}")
    missing = [
        what
        for what, there in (
            ("the relay was not killed", bool(scene.kills)),
            ("no transaction was rolled back", verdict.rolled_back > 0),
            ("too few rows were written", verdict.committed >= 0.8 * scene.records),
            ("rows were left in the outbox", verdict.pending == 0),
        )
        if not there
    ]
    for what in missing:
        complain(f"{what}: this proves nothing")
    good = verdict.ok and not missing
    out.print(f"[{'green' if good else 'red'}]{verdict.line()}[/]")
    return good
