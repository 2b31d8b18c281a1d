"""Captures that are killed, stopped or run twice, and servers that restart: each record takes effect once, in order.

The handler adds each record's total, so that a record applied twice, or not at all, shows in the sum.
"""

import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture.captured import COLUMNS, CapturedOrders, captured
from tests.capture.crash_hook import HOOK
from tests.faults.kill_order import KillOrder, kill_order
from tests.faults.mix.signals import stopped
from tests.faults.program import Program
from tests.processes import eventually, marked
from thresher.capture.capture import Capture
from thresher.devstack.stack import Stack
from thresher.spark.session.session import Session

# Seen: 8 s for a capture to start; 15 s until the server ends a session that does not move.
PATIENCE_SECONDS = 90.0
MARK = "THRESHER_CAPTURE_TEST"
ADDING = {"handler": "tests.capture.functions:count_orders"}
# Small batches, so that the orders are applied in several.
SMALL: dict[str, Any] = {"batch_records": 50}
ORDERS = 300


class Captures:
    """Capture programs of one table, and an order to kill a part of one of them."""

    def __init__(self, orders: CapturedOrders, directory: Path, order: KillOrder) -> None:
        self.orders, self.order, self._directory = orders, order, directory
        self.processes: list[Any] = []

    def start(self, *, who: str, point: str, after: int = 1) -> Any:
        """Start a program; `who` is the part of it that is killed at a crash point."""
        number = len(self.processes)
        settings: dict[str, Any] = {"keys": {**self.orders.keys, **SMALL}, "hook": HOOK}
        variables = {MARK: f"{self._directory}/{number}"}
        program = Program(module="tests.capture.program", settings=settings, variables=variables)
        process = program.start(self._directory / f"capture-{number}.log")
        self.processes.append(process)
        self.order.give(point, who, after=after, driver=process.pid)
        return process

    def end(self) -> None:
        """End all captures, and check that none of their processes is left."""
        for process in self.processes:
            process.terminate()
        for number, process in enumerate(self.processes):
            process.wait(60)
            eventually(lambda left=number: not self.tree(left), PATIENCE_SECONDS, self.said)  # type: ignore[misc]

    def tree(self, number: int) -> set[int]:
        """Every process of a capture: driver, JVM, daemon and workers."""
        return set(marked(f"{MARK}={self._directory}/{number}"))

    def log(self, number: int) -> str:
        return (self._directory / f"capture-{number}.log").read_text(errors="replace")

    def said(self) -> str:
        logs = [f"capture {number}:\n{self.log(number)[-4000:]}" for number in range(len(self.processes))]
        return "\n".join([f"stored {self.orders.stored()}, dead {self.orders.dead()}", *logs])

    def await_rows(self, wanted: dict[str, int]) -> None:
        eventually(lambda: self.orders.rows() == wanted, PATIENCE_SECONDS, self.said)


@pytest.fixture
def captures(stack: Stack, spark: Session, dsn: str, tmp_path: Path) -> Iterator[Captures]:
    with kill_order() as order:
        made = Captures(CapturedOrders(stack.kafka.bootstrap, dsn), tmp_path, order)
        yield made
        made.end()


def add(orders: CapturedOrders, count: int = ORDERS) -> dict[str, int]:
    """Publish `count` orders of a few customers, each with a total of 1, and return the expected sums."""
    names = [f"c{number % 7}" for number in range(count)]
    orders.publish(*((name, 1) for name in names))
    return {name: names.count(name) for name in set(names)}


def await_each_once(captures: Captures, wanted: dict[str, int]) -> None:
    """Wait until a later record is applied, and check that each record before it was applied once."""
    orders = captures.orders
    for partition in range(3):
        orders.publish((f"last-{partition}", 1), partition=partition)
    last = {f"last-{partition}": 1 for partition in range(3)}
    eventually(lambda: last.items() <= orders.rows().items(), PATIENCE_SECONDS, captures.said)
    assert orders.rows() == wanted | last
    assert sum(orders.stored().values()) == sum(wanted.values()) + len(last)


@pytest.mark.parametrize("point", ["before-commit", "committed"])
def test_a_killed_worker_applies_each_record_once(captures: Captures, point: str) -> None:
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}
    wanted = add(orders)
    captures.order.give(point, "worker", after=2)
    # The engine replaces a killed worker.
    with captured(orders, hook=HOOK, **SMALL):
        eventually(lambda: captures.order.is_done, PATIENCE_SECONDS, captures.said)
        await_each_once(captures, wanted)


def test_a_killed_capture_applies_each_record_once(captures: Captures) -> None:
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}
    wanted = add(orders)
    victim = captures.start(who="driver", point="before-commit", after=2)
    eventually(lambda: captures.order.is_done, PATIENCE_SECONDS, captures.said)
    eventually(lambda: victim.poll() is not None, PATIENCE_SECONDS, captures.said)
    assert 0 < sum(orders.stored().values()) < ORDERS, "it was killed midway"
    # After a killed driver, a supervisor starts the program again: here, the test.
    with captured(orders, **SMALL):
        await_each_once(captures, wanted)


def test_a_stopped_capture_that_resumes_changes_nothing(captures: Captures) -> None:
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}
    wanted = add(orders)
    older = captures.start(who="nobody", point="before-commit")
    eventually(lambda: captures.order.is_done, PATIENCE_SECONDS, captures.said)
    with contextlib.ExitStack() as newer:
        with stopped(captures.tree(0)):
            newer.enter_context(captured(orders, **SMALL))
            captures.await_rows(wanted)
            more = add(orders)
            wanted = {name: wanted[name] + more[name] for name in wanted}
            captures.await_rows(wanted)
        eventually(lambda: older.poll() is not None, PATIENCE_SECONDS, captures.said)
        assert older.poll() == 3, captures.said()
    assert orders.rows() == wanted
    assert sum(orders.stored().values()) == 2 * ORDERS


def test_two_captures_at_once_apply_each_record_once(captures: Captures, caplog: pytest.LogCaptureFixture) -> None:
    """Both captures lead, because each has an election of its own."""
    orders = captures.orders
    orders.keys["topics"] = {orders.topic: ADDING}

    def elected(number: int) -> Capture:
        own = f"{orders.topic}.{number}"
        return Capture({**orders.keys, **SMALL, "election": "neli", "leader_topic": own, "leader_group": own})

    wanted: Counter[str] = Counter()
    with caplog.at_level(logging.INFO, "thresher"), elected(0), elected(1):

        def superseded_often() -> bool:
            wanted.update(add(orders, 21))
            return caplog.text.count("superseded although it was elected") >= 3

        eventually(superseded_often, PATIENCE_SECONDS, captures.said)
        captures.await_rows(dict(wanted))
        assert sum(orders.stored().values()) == wanted.total()


def test_repeated_and_late_records_never_take_a_row_back(captures: Captures) -> None:
    """Repeated records, tombstones, added partitions and killed workers leave each row in its last state."""
    orders, draw = captures.orders, random.Random(7)
    orders.keys["topics"] = {orders.topic: {"table": "orders", "columns": COLUMNS}}
    captures.order.give("before-commit", "worker", after=3)
    with captured(orders, hook=HOOK, shards=2, **SMALL):
        wanted: dict[str, int] = {}
        for number in range(1, 401):
            name = f"o{draw.randrange(20)}"
            wanted[name] = number
            orders.publish((name, number), timestamp=number)
            if number == 200:
                orders.widen(7)
            if number < 200 and draw.random() < 0.2:
                # Before partitions are added: a deleted row has no guard against unread records of its former
                # partition.
                del wanted[name]
                orders.publish((name, None), timestamp=number)
            elif draw.random() < 0.3:
                # The same record again, later in the topic: it counts as the newest until the next record.
                orders.publish((name, number), timestamp=number)
        captures.await_rows(wanted)
        assert captures.order.is_done
    assert orders.dead() == []


def test_a_database_and_a_broker_that_restart_cost_nothing(proxied: tuple[Stack, int], spark: Session) -> None:
    stack, _ = proxied
    orders = CapturedOrders(stack.kafka.bootstrap, stack.postgres.create_database("captured"))
    orders.keys["topics"] = {orders.topic: ADDING}
    with captured(orders, **SMALL):
        wanted = add(orders)
        orders.await_rows(wanted)
        stack.postgres.server.kill()
        more = add(orders)
        time.sleep(2)
        stack.postgres.start()
        wanted = {name: wanted[name] + more[name] for name in wanted}
        eventually(lambda: _answers(orders), PATIENCE_SECONDS)
        eventually(lambda: orders.rows() == wanted, PATIENCE_SECONDS)
        (number,) = stack.kafka.nodes
        stack.kafka.nodes[number].kill()
        time.sleep(3)
        stack.kafka.start_node(number)
        more = add(orders)
        wanted = {name: wanted[name] + more[name] for name in wanted}
        eventually(lambda: orders.rows() == wanted, PATIENCE_SECONDS)
        assert orders.dead() == []


def _answers(orders: CapturedOrders) -> bool:
    try:
        orders.rows()
    except Exception:  # noqa: BLE001 - any error means: not there yet
        return False
    return True
