"""At least once, in order per key, for `read_uncommitted` readers: rows are marked, sent in waves, purged, and marked
again after a failure."""

import contextlib
import random
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message as Read

from tests.relay.load import Load
from tests.relay.relaying import Place, Relaying
from thresher.core.errors import Superseded
from thresher.outbox import Message, Shape
from thresher.relay.settings import Delivery
from thresher.testing.reading import read_topics

MANY, KEYS = 300, 20
FAULTY = "tests.faults.faulty:faulty"


@pytest.fixture(params=Shape, ids=str)
def place(request: pytest.FixtureRequest, stack: Any, spark: Any, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix, shape=request.param)


@pytest.fixture
def ours(stack: Any, spark: Any, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def message(place: Place, number: int, key: str | None = None) -> Message:
    text = f"k{number % KEYS}" if key is None else key
    if place.shape is Shape.GOHARVEST:
        return Message(topic=place.topic, key=text, value=str(number))
    return Message(topic=place.topic, key=text.encode(), value=str(number).encode())


def by_key(read: list[Read]) -> Iterator[list[int]]:
    keys: dict[Any, list[int]] = {}
    for each in read:
        keys.setdefault(each.key(), []).append(int(each.value() or b""))
    yield from keys.values()


def test_rows_arrive_once_and_in_order_without_faults(place: Place) -> None:
    """A third of the rows at the beginning is unmarked, the others were marked by two processes that died."""
    place.stash(*(message(place, number) for number in range(MANY)))
    mark = "session_id" if place.shape is Shape.DEIMOS else "leader_id"
    place.sql(f"UPDATE {place.table} SET {mark} = %s WHERE id %% 3 > 0", uuid.uuid4())
    place.sql(f"UPDATE {place.table} SET {mark} = %s WHERE id %% 7 = 0", uuid.uuid4())
    with at_least_once(place) as relaying:
        relaying.until(lambda: place.pending() == 0)
        place.stash(*(message(place, number) for number in range(MANY, MANY + 10)))
        read = place.read(MANY + 10)
        relaying.until(lambda: place.pending() == 0)
    for numbers in by_key(read):
        assert numbers == sorted(numbers)
    assert place.sql("SELECT mode FROM thresher_relay") == [("at-least-once",)]


def at_least_once(place: Place, **changes: Any) -> Relaying:
    return place.relaying(delivery=Delivery.AT_LEAST_ONCE, **changes)


def sent(relaying: Relaying, rows: int) -> bool:
    return relaying.total("relayed") >= rows


@pytest.mark.parametrize("relays", [2, pytest.param(8, marks=pytest.mark.soak)])
def test_failed_records_lead_to_direct_repeats_at_most(ours: Place, tmp_path: Path, relays: int) -> None:
    # A lower rate than that of a relay with a fault in most batches. Few keys, because a batch has a row of each key:
    # the larger it is, the more often it fails as a whole.
    with Load(ours, tmp_path, own_keys=True, keys=20, rate=40.0) as load, contextlib.ExitStack() as scene:
        older: list[Relaying] = []
        for _ in range(relays):
            newer = scene.enter_context(at_least_once(ours, producer_factory=FAULTY))
            # The relay continues despite repeated faults.
            for wanted in (50, 100, 150):
                newer.until(partial(sent, newer, wanted))
            assert all(isinstance(relay.ended(), Superseded) for relay in older)
            older = [newer]
        load.end()
    verdict = load.require_clean(100 * relays, everything=True)
    assert verdict.repeated > 0
    assert verdict.rolled_back > 0


def test_ended_database_sessions_lead_to_direct_repeats_at_most(ours: Place, tmp_path: Path) -> None:
    with Load(ours, tmp_path, own_keys=True, keys=60, rate=200.0) as load, at_least_once(ours) as relaying:
        for wanted in (100, 200, 300):
            relaying.until(partial(sent, relaying, wanted))
            ours.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'thresher/%'"
            )
        relaying.until(partial(sent, relaying, 400))
        load.end()
    assert relaying.total("relayed") >= 400
    load.require_clean(150, everything=True)


def test_a_late_lower_id_is_sent_without_waiting_for_gaps(ours: Place) -> None:
    with (
        at_least_once(ours, shards=1) as relaying,
        psycopg.connect(ours.dsn) as late,
        psycopg.connect(ours.dsn) as not_,
    ):
        ours.outbox.stash_many(late, [message(ours, 0, "k")])
        ours.outbox.stash_many(not_, [message(ours, 1, "k")])
        ours.stash(message(ours, 2, "k"))
        relaying.until(lambda: relaying.sent() == 1)
        not_.rollback()
        ours.stash(message(ours, 3, "k"))
        relaying.until(lambda: relaying.sent() == 2)
        late.commit()
        ours.stash(message(ours, 4, "k"))
        relaying.until(lambda: ours.pending() == 0)
    assert list(by_key(ours.read(4))) == [[2, 3, 0, 4]]


def test_keys_with_few_rows_overtake_one_with_many(ours: Place) -> None:
    # In one partition the offsets show the order.
    line = f"{ours.prefix}line"
    ours.admin.create_topic(line, partitions=1)
    ours.stash(*(Message(topic=line, key=b"hot", value=b"v") for _ in range(5_000)))
    with at_least_once(ours, shards=1) as relaying:
        relaying.until(lambda: relaying.sent() > 50)
        ours.stash(*(Message(topic=line, key=b"cold%d" % number, value=b"v") for number in range(100)))
        ((waiting,),) = ours.sql("SELECT count(*) FROM outbox WHERE kafka_key = 'hot'")
        cold = "SELECT count(*) FROM outbox WHERE kafka_key <> 'hot'"
        relaying.until(lambda: ours.sql(cold) == [(0,)])
    read = sorted(read_topics(ours.stack.kafka.bootstrap, [line]), key=lambda each: each.offset)
    last = max(place for place, each in enumerate(read) if each.key != b"hot")
    before = sum(each.key == b"hot" for each in read[:last])
    # Count only the hot rows that were pending when the cold ones were stored.
    assert before - (5_000 - waiting) < 2_000


@pytest.mark.parametrize("factory", [None, FAULTY], ids=["sound", "faulty"])
def test_poison_rows_are_dead_and_others_arrive_despite_faults(ours: Place, factory: str | None) -> None:
    narrow = f"{ours.prefix}narrow"
    ours.admin.create_topic(narrow, partitions=1, config={"max.message.bytes": "20000"})
    rows = []
    for number in range(300):
        rows.append(message(ours, number))
        if number % 50 == 10:
            rows.append(Message(topic=narrow, key=f"n{number}", value=random.Random(number).randbytes(30_000)))
        elif number % 50 == 20:
            rows.append(Message(topic=narrow, key=f"n{number}", value=b"1"))
        elif number % 50 == 30:
            rows.append(Message(topic=f"{ours.prefix}missing", key=f"m{number}", value=b"1"))
    ours.stash(*rows)
    ours.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
        " VALUES (%s, 'h', 'v', '{a,b}', '{x}')",
        ours.topic,
    )
    with at_least_once(ours, shards=1, producer_factory=factory, limits={"grace_seconds": 1.0}) as relaying:
        # On a busy machine, the budget of recoveries is overdrawn before the last poison row is found.
        relaying.until(lambda: ours.pending() == 0, 180)
    kinds = [kind for _, kind, *_ in ours.dead()]
    assert sorted(kinds) == ["malformed"] + ["no-topic"] * 6 + ["too-large"] * 6
    found = read_topics(ours.stack.kafka.bootstrap, [ours.topic, narrow])
    assert len({(each.topic, each.offset, each.partition) for each in found}) >= 306
    if factory is None:
        assert len(found) == 306
        for numbers in by_key(ours.read(300)):
            assert numbers == sorted(numbers)
