"""Captures that are killed, stopped or run twice, and servers that restart: each record takes effect once, in order.

The handler adds each record's total, so that a record applied twice, or not at all, shows in the sum.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture.captured import COLUMNS, CapturedOrders
from tests.faults.mix.signals import stopped
from tests.faults.program import Program
from tests.processes import eventually, marked
from thresher.devstack.stack import Stack

# Seen: 8 s for a capture to start; 15 s until the server ends a session that does not move.
PATIENCE_SECONDS = 90.0
MARK = "THRESHER_CAPTURE_TEST"
ADDING = {"handler": "tests.capture.functions:count_orders"}
ORDERS = 300


class Captures:
    """Capture programs of one table."""

    def __init__(self, orders: CapturedOrders, directory: Path) -> None:
        self.orders, self._directory = orders, directory
        self.processes: list[Any] = []

    def start(self, crash: dict[str, Any] | None = None, **keys: Any) -> Any:
        number = len(self.processes)
        settings: dict[str, Any] = {"keys": {**self.orders.keys, "batch_records": 50, **keys}}
        if crash is not None:
            settings["crash"] = {**crash, "done": str(self._directory / f"done-{number}")}
        variables = {MARK: f"{self._directory}/{number}"}
        program = Program(module="tests.capture.program", settings=settings, variables=variables)
        process = program.start(self._directory / f"capture-{number}.log")
        self.processes.append(process)
        return process

    def end(self) -> None:
        """End all captures, and check that none of their processes is left."""
        for process in self.processes:
            process.terminate()
        for number, process in enumerate(self.processes):
            process.wait(60)
            eventually(lambda left=number: not self.tree(left), PATIENCE_SECONDS, self.said)  # type: ignore[misc]

    def has_crashed(self, number: int) -> bool:
        return (self._directory / f"done-{number}").exists()

    def tree(self, number: int) -> set[int]:
        """Every process of a capture: driver, JVM, daemon and workers."""
        return set(marked(f"{MARK}={self._directory}/{number}"))

    def is_capturing(self, number: int) -> bool:
        return "is capturing" in self.log(number)

    def log(self, number: int) -> str:
        return (self._directory / f"capture-{number}.log").read_text(errors="replace")

    def said(self) -> str:
        logs = [f"capture {number}:\n{self.log(number)[-4000:]}" for number in range(len(self.processes))]
        return "\n".join([f"stored {self.orders.stored()}, dead {self.orders.dead()}", *logs])

    def await_rows(self, wanted: dict[str, int]) -> None:
        eventually(lambda: self.orders.rows() == wanted, PATIENCE_SECONDS, self.said)


@pytest.fixture
def captures(stack: Stack, dsn: str, tmp_path: Path) -> Iterator[Captures]:
    made = Captures(CapturedOrders(stack.kafka.bootstrap, dsn), tmp_path)
    yield made
    made.end()


def add(orders: CapturedOrders, count: int = ORDERS) -> dict[str, int]:
    """Publish `count` orders of a few customers, each with a total of 1, and return the expected sums."""
    names = [f"c{number % 7}" for number in range(count)]
    orders.publish(*((name, 1) for name in names))
    return {name: names.count(name) for name in set(names)}


@pytest.mark.parametrize(
    ("who", "point"), [("worker", "before-commit"), ("worker", "committed"), ("driver", "before-commit")]
)
def test_a_killed_capture_applies_each_record_once(captures: Captures, who: str, point: str) -> None:
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}
    wanted = add(orders)
    victim = captures.start({"point": point, "who": who, "after": 2})
    eventually(lambda: captures.has_crashed(0), PATIENCE_SECONDS, captures.said)
    if who == "driver":
        # The engine replaces a killed worker. After a killed driver, a supervisor starts the program again: here, the
        # test.
        eventually(lambda: victim.poll() is not None, PATIENCE_SECONDS, captures.said)
        captures.start()
    captures.await_rows(wanted)
    time.sleep(1)
    assert orders.rows() == wanted
    assert sum(orders.stored().values()) == ORDERS


def test_a_stopped_capture_that_resumes_changes_nothing(captures: Captures) -> None:
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}
    wanted = add(orders)
    older = captures.start({"point": "before-commit", "who": "nobody"})
    eventually(lambda: captures.has_crashed(0), PATIENCE_SECONDS, captures.said)
    with stopped(captures.tree(0)):
        captures.start()
        captures.await_rows(wanted)
        more = add(orders)
        wanted = {name: wanted[name] + more[name] for name in wanted}
        captures.await_rows(wanted)
    eventually(lambda: older.poll() is not None, PATIENCE_SECONDS, captures.said)
    assert older.poll() == 3, captures.said()
    assert orders.rows() == wanted
    assert sum(orders.stored().values()) == 2 * ORDERS


def test_two_captures_at_once_apply_each_record_once(captures: Captures) -> None:
    """Both captures lead, because each has an election of its own."""
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}
    for number in range(2):
        captures.start(
            election="neli", leader_topic=f"{orders.topic}.{number}", leader_group=f"{orders.topic}.{number}"
        )
    wanted: dict[str, int] = {}
    deadline = time.monotonic() + 20
    rounds = 0
    while time.monotonic() < deadline:
        rounds += 1
        for name, count in add(orders, 70).items():
            wanted[name] = wanted.get(name, 0) + count
        time.sleep(0.1)
    captures.await_rows(wanted)
    assert "superseded although it was elected" in captures.log(0) + captures.log(1), captures.said()
    assert sum(orders.stored().values()) == rounds * 70


def test_repeated_and_late_records_never_take_a_row_back(captures: Captures) -> None:
    """Repeated records, tombstones, added partitions and killed workers leave each row in its last state."""
    orders, draw = captures.orders, random.Random(7)
    orders.keys["topics"] = {orders.topic: {"table": "orders", "columns": COLUMNS}}
    captures.start({"point": "before-commit", "who": "worker", "after": 3}, shards=2)
    wanted: dict[str, int] = {}
    for number in range(1, 401):
        name = f"o{draw.randrange(20)}"
        wanted[name] = number
        orders.publish((name, number), timestamp=number)
        if number == 200:
            orders.widen(7)
        if number < 200 and draw.random() < 0.2:
            # Before partitions are added: a deleted row has no guard against unread records of its former partition.
            del wanted[name]
            orders.publish((name, None), timestamp=number)
        elif draw.random() < 0.3:
            # The same record again, later in the topic: it counts as the newest until the next record.
            orders.publish((name, number), timestamp=number)
    captures.await_rows(wanted)
    assert orders.dead() == []


def test_a_database_and_a_broker_that_restart_cost_nothing(proxied: tuple[Stack, int], tmp_path: Path) -> None:
    stack, _ = proxied
    orders = CapturedOrders(stack.kafka.bootstrap, stack.postgres.create_database("captured"))
    orders.keys["topics"] = {orders.topic: ADDING}
    captures = Captures(orders, tmp_path)
    try:
        captures.start()
        wanted = add(orders)
        captures.await_rows(wanted)
        stack.postgres.server.kill()
        more = add(orders)
        time.sleep(2)
        stack.postgres.start()
        wanted = {name: wanted[name] + more[name] for name in wanted}
        eventually(lambda: _answers(orders), PATIENCE_SECONDS)
        captures.await_rows(wanted)
        (number,) = stack.kafka.nodes
        stack.kafka.nodes[number].kill()
        time.sleep(3)
        stack.kafka.start_node(number)
        more = add(orders)
        wanted = {name: wanted[name] + more[name] for name in wanted}
        captures.await_rows(wanted)
        assert orders.dead() == []
    finally:
        captures.end()


def _answers(orders: CapturedOrders) -> bool:
    try:
        orders.rows()
    except Exception:  # noqa: BLE001 - any error means: not there yet
        return False
    return True
