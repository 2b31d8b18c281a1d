"""The relay with `dispatch: immediate`: it sends only the rows that a dispatcher has left."""

import contextlib
import os
import random
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.committed_records import committed_records
from tests.engine.only_shard import only_shard
from tests.processes import eventually
from tests.relay.recorded import recorded
from tests.relay.relaying import Place, Relaying, taken_over
from thresher.db.outbox_store import Wanted
from thresher.db.problem import DatabaseLost
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import AwaitSettled
from thresher.delivery.fate import SENT, Dead, Kind
from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.shard.meter import Meter
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.outbox.receipt import Receipt
from thresher.publisher import Cleared, Dispatcher, DispatchRefused
from thresher.publisher.dispatch_table import DispatchTable
from thresher.relay.protocol.progress import Progress
from thresher.relay.settings import Delivery, Dispatch, Settling, ShardAssignment
from thresher.relay.shard.settling import SettleSteps
from thresher.relay.store import store_of

ROWS, THREADS = 3_000, 6
IN_FLIGHT, MOST_RESTARTS = 100, 10
MINE = uuid.UUID(int=1)
SWEEPS: dict[str, Any] = {
    "dispatch": Dispatch.IMMEDIATE,
    "settling": Settling.STAMP,
    "delivery": Delivery.AT_LEAST_ONCE,
}


@pytest.fixture
def place(stack: Stack, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def sweeping(place: Place, **limits: Any) -> Relaying:
    return place.relaying(**SWEEPS, limits={"sweep_seconds": 0.05, **limits})


def dispatcher(place: Place, **changes: Any) -> Dispatcher:
    kafka = {"bootstrap.servers": place.stack.kafka.bootstrap, **changes}
    return Dispatcher(lambda: psycopg.connect(place.dsn), kafka)


def message(place: Place, number: int) -> Message:
    return Message(topic=place.topic, key=f"k{number % 50}", value=str(number))


def values(place: Place, count: int) -> Counter[int]:
    return Counter(int(each.value() or b"") for each in place.read(count))


# Without Spark


def marked(place: Place, assignment: ShardAssignment, **more: Any) -> list[int]:
    """Mark rows as a sweeper does, and return their ids."""
    bounds: dict[str, Any] = {"rows": 100, "rows_per_bucket": 100, "batch_bytes": 10**6, "largest_bytes": 10**6}
    wanted = Wanted(buckets=range(64), **{**bounds, "min_age_seconds": 0.0, **more})
    with contextlib.closing(store_of(assignment.settings).session("tests")) as session:
        return [row[0] for row in session.marks(assignment.settings.name, assignment.term).mark(wanted, MINE)]


@pytest.mark.parametrize("by_id", [False, True])
def test_a_sweeper_leaves_rows_that_a_dispatcher_has_locked(place: Place, by_id: bool) -> None:
    assignment = taken_over(place.settings(**SWEEPS))
    place.stash(*(message(place, number) for number in range(10)))
    ids = [id_ for (id_,) in place.sql("SELECT id FROM outbox ORDER BY id")]
    with ThreadPoolExecutor(1) as thread, psycopg.connect(place.dsn) as sending:
        sending.execute("SELECT FROM outbox WHERE id = ANY (%s) FOR NO KEY UPDATE", [ids[::2]])
        # The sweeper does not wait for the locked rows.
        assert thread.submit(marked, place, assignment, by_id=by_id).result(30) == ids[1::2]
        sending.execute("UPDATE outbox SET dispatched_time = now() WHERE id = ANY (%s)", [ids[:5:2]])
    assert marked(place, assignment, by_id=by_id) == ids[6::2]


@pytest.mark.parametrize("by_id", [False, True])
def test_a_row_stamped_meanwhile_is_not_marked(place: Place, by_id: bool) -> None:
    assignment = taken_over(place.settings(delivery=Delivery.AT_LEAST_ONCE, settling=Settling.STAMP))
    place.stash(*(message(place, number) for number in range(10)))
    ids = [id_ for (id_,) in place.sql("SELECT id FROM outbox ORDER BY id")]
    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tests' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as thread:
        with psycopg.connect(place.dsn) as stamping:
            stamping.execute("UPDATE outbox SET dispatched_time = now() WHERE id = ANY (%s)", [ids[::2]])
            # The marking statement has read the rows as pending, and waits for their locks.
            marking = thread.submit(marked, place, assignment, by_id=by_id, min_age_seconds=None)
            eventually(lambda: place.sql(waits) == [(1,)], 60)
        assert marking.result(60) == ids[1::2]


def stashed(place: Place, number: int) -> Receipt:
    with psycopg.connect(place.dsn) as connection:
        receipt = place.outbox.stash(connection, message(place, number))
    assert receipt is not None
    return receipt


def test_a_dispatcher_works_only_beside_a_sweeper(place: Place) -> None:
    others: list[dict[str, Any]] = [
        {"delivery": Delivery.AT_LEAST_ONCE, "settling": Settling.STAMP},
        {"delivery": Delivery.EXACTLY_ONCE, "settling": Settling.STAMP},
    ]
    with dispatcher(place) as sending:
        for other in others:
            taken_over(place.settings(**SWEEPS))
            assert sending.clear([stashed(place, 1)]).sent == 1
            taken_over(place.settings(**other))
            with pytest.raises(DispatchRefused, match=f"its mode is {other['delivery']}"):
                sending.clear([stashed(place, 2)])
    assert place.pending() == 2


def test_another_relay_takes_over_after_sending_dispatchers(place: Place) -> None:
    taken_over(place.settings(**SWEEPS))
    receipt = stashed(place, 1)
    laid_out = "SELECT mode FROM thresher_relay"
    table = DispatchTable(lambda: psycopg.connect(place.dsn), place.table, connections=1, idle_seconds=60)
    with ThreadPoolExecutor(1) as thread:
        with table.locked([(receipt.id, receipt.create_time)], within_seconds=60) as (rows, stamp):
            taking = thread.submit(taken_over, place.settings(settling=Settling.STAMP))
            eventually(lambda: taking.done() or place.sql(laid_out) == [("exactly-once",)], 60)
            with pytest.raises(TimeoutError):
                taking.result(1)
            assert stamp([row.id for row in rows]) == 1
        assert taking.result(60).settings.mode == "exactly-once"
    table.close()


class Settles:
    """The settling of one attempt at a shard, without Spark."""

    def __init__(self, place: Place, assignment: ShardAssignment, resources: ExitStack, mark: uuid.UUID | None) -> None:
        self.events: list[tuple[str, Any]] = []
        shard = only_shard(resources, on_event=lambda name, fields: self.events.append((name, fields)))
        session = resources.enter_context(contextlib.closing(store_of(assignment.settings).session("tests")))
        place.sql("UPDATE outbox SET leader_id = %s", mark)
        self._steps = SettleSteps(
            assignment,
            session,
            ReadAhead(ReadAheadLimits(most_rows=100)),
            None if mark is None else lambda _: mark,
            CrashPoints(None, 0),
            shard,
            Meter(shard, report=shard.event, waves=True),
        )

    def settle(self, progress: Progress) -> None:
        self._steps.settler.begin(progress, False)
        self._steps.handlers[AwaitSettled](AwaitSettled())


@pytest.mark.parametrize("mark", [MINE, None], ids=["at least once", "without marks"])
def test_a_row_stamped_by_the_application_is_no_fault(place: Place, mark: uuid.UUID | None) -> None:
    place.stash(*(message(place, number) for number in range(6)))
    sent = recorded(*((*row, SENT) for row in place.sql("SELECT id, create_time FROM outbox ORDER BY id")))
    with ExitStack() as resources:
        settles = Settles(place, taken_over(place.settings(**SWEEPS)), resources, mark)
        place.sql("UPDATE outbox SET dispatched_time = now() WHERE id % 2 = 0")
        settles.settle(sent)
        assert (settles.events, place.pending()) == ([], 0)


@pytest.mark.parametrize("dispatch", Dispatch)
def test_a_row_that_vanished_is_a_fault(place: Place, dispatch: Dispatch) -> None:
    place.stash(*(message(place, number) for number in range(6)))
    sent = recorded(*((*row, SENT) for row in place.sql("SELECT id, create_time FROM outbox ORDER BY id")))
    assignment = taken_over(place.settings(**{**SWEEPS, "dispatch": dispatch}))
    with ExitStack() as resources:
        settles = Settles(place, assignment, resources, MINE)
        place.sql("UPDATE outbox SET dispatched_time = now() WHERE id % 2 = 0")
        place.sql("DELETE FROM outbox WHERE id = (SELECT max(id) FROM outbox)")
        gone = 1 if dispatch is Dispatch.IMMEDIATE else 3
        with pytest.raises(DatabaseLost, match=f"{gone} of 6 rows were gone"):
            settles.settle(sent)


DEAD = Dead(kind=Kind.REJECTED, reason="no", attempts=1, blocking=False)


def test_a_dead_row_stamped_by_the_application_stays(place: Place) -> None:
    place.stash(*(message(place, number) for number in range(4)))
    rows = place.sql("SELECT id, create_time FROM outbox ORDER BY id")
    fates = recorded(*((*row, fate) for row, fate in zip(rows, (SENT, DEAD, SENT, DEAD), strict=True)))
    with ExitStack() as resources:
        settles = Settles(place, taken_over(place.settings(**SWEEPS)), resources, MINE)
        place.sql("UPDATE outbox SET dispatched_time = now() WHERE id = ANY (%s)", [rows[0][0], rows[1][0]])
        settles.settle(fates)
        assert (settles.events, place.pending()) == ([], 0)
    assert [row[0] for row in place.dead()] == [rows[3][0]]
    assert place.sql("SELECT id FROM outbox ORDER BY id") == [(id_,) for id_, _ in rows[:3]]


def test_a_dead_row_that_vanished_is_a_fault(place: Place) -> None:
    place.stash(*(message(place, number) for number in range(4)))
    rows = place.sql("SELECT id, create_time FROM outbox ORDER BY id")
    fates = recorded(*((*row, fate) for row, fate in zip(rows, (SENT, DEAD, SENT, DEAD), strict=True)))
    with ExitStack() as resources:
        settles = Settles(place, taken_over(place.settings(**SWEEPS)), resources, MINE)
        place.sql("DELETE FROM outbox WHERE id = %s", rows[1][0])
        with pytest.raises(DatabaseLost, match=r"^1 of 4 rows were gone"):
            settles.settle(fates)


# With Spark


@pytest.mark.usefixtures("spark")
def test_old_rows_are_swept_and_young_ones_left(place: Place) -> None:
    place.stash(*(message(place, number) for number in range(200)))
    place.sql("UPDATE outbox SET create_time = create_time - interval '1 hour' WHERE id <= 100")
    # A row with a create time from before the clock was set back.
    place.sql("UPDATE outbox SET create_time = create_time + interval '1 hour' WHERE id = 200")
    with sweeping(place, min_age_seconds=600) as relaying:
        relaying.until(lambda: place.pending() == 99)
        place.sql("UPDATE outbox SET create_time = create_time - interval '1 hour' WHERE id = 150")
        relaying.until(lambda: place.pending() == 98)
        relaying.undisturbed()
    assert values(place, 102) == dict.fromkeys([*range(100), 149, 199], 1)
    assert place.sql("SELECT count(*) FROM outbox WHERE dispatched_time IS NOT NULL AND leader_id IS NULL") == [(0,)]


@pytest.mark.usefixtures("spark")
def test_sweeper_and_dispatchers_race_and_each_row_is_sent(place: Place) -> None:
    draw = random.Random(7)
    numbers = iter(range(ROWS))
    taking = threading.Lock()
    found: list[Cleared] = []
    with (
        sweeping(place, min_age_seconds=0.1, in_flight_rows=IN_FLIGHT) as relaying,
        dispatcher(place) as one,
        dispatcher(place) as another,
    ):
        relaying.until(lambda: relaying.up)

        def work(_: int) -> None:
            with psycopg.connect(place.dsn) as connection:
                while True:
                    with taking:
                        mine = [number for _, number in zip(range(draw.randint(1, 12)), numbers, strict=False)]
                        kind, wait = draw.random(), draw.random() * 0.2
                    if not mine:
                        return
                    stored = place.outbox.stash_many(
                        connection, [message(place, number) for number in mine], receipts=True
                    )
                    if kind < 0.2:
                        # Longer than the minimum age of a row.
                        time.sleep(wait)
                    connection.commit()
                    if kind > 0.9:
                        # As if the application's process had died.
                        continue
                    if kind > 0.7:
                        time.sleep(wait)
                    found.extend(each.clear(stored) for each in ((one, another) if kind > 0.5 else (one,)))

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(work, range(THREADS)))
        relaying.until(lambda: place.pending() == 0)
        restarts = sum(shard.restarts for shard in relaying.shards)
    records = committed_records(place.topic, {"bootstrap.servers": place.stack.kafka.bootstrap})
    sent = Counter(int(record.value or b"") for record in records)
    assert sent.keys() == set(range(ROWS))
    assert ROWS // 4 < sum(each.sent for each in found) < ROWS
    # A shard that starts over repeats its rows in flight. No other row is sent again.
    assert sum(sent.values()) - ROWS <= restarts * IN_FLIGHT
    assert restarts <= MOST_RESTARTS


@pytest.mark.usefixtures("spark")
def test_the_sweeper_makes_unsendable_rows_dead(place: Place) -> None:
    with psycopg.connect(place.dsn) as connection:
        large = place.outbox.stash(connection, Message(topic=place.topic, key="k", value=os.urandom(999_800)))
        connection.execute("UPDATE outbox SET kafka_value = kafka_value || kafka_value")
        small = place.outbox.stash(connection, message(place, 1))
    with dispatcher(place) as sending:
        assert (sending.clear([large, small]).not_sent, place.pending()) == (1, 1)
    with sweeping(place, min_age_seconds=0.1) as relaying:
        relaying.until(lambda: place.pending() == 0)
    ((_, kind, _, _, _),) = place.dead()
    assert kind == "too-large"
    assert values(place, 1) == {1: 1}
