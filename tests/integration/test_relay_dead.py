"""Dead rows on a real database: how they are stored, replayed and dropped."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from tests.processes import eventually
from tests.relay.recorded import recorded
from tests.relay.relaying import RELAYED_SECONDS, Place, taken_over
from thresher.cli.dead import drop, replay
from thresher.core.errors import InvalidInput
from thresher.db.postgres.settlement import PostgresSettlement
from thresher.delivery.fate import Kind, dead
from thresher.devstack.stack import Stack
from thresher.outbox import Message, Shape
from thresher.relay.settings import Settling
from thresher.relay.settle import Settlement


def test_dead_rows_with_one_id_are_replayed_and_dropped_separately(stack: Stack, dsn: str, topic_prefix: str) -> None:
    at = Place(stack, dsn, topic_prefix)
    taken_over(at.settings())
    insert = (
        "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_value, kafka_header_keys, kafka_header_values,"
        " kind, reason, attempts, blocking) VALUES (5, %s, %s, 'v', '{}', '{}', 'no-topic', '', 1, false)"
    )
    for day, topic in ((1, "x"), (2, "y"), (3, "y")):
        at.sql(insert, datetime(2026, 1, day, tzinfo=UTC), topic)
    with pytest.raises(InvalidInput, match="several dead rows have the id 5"):
        drop([5], ds=at.dsn)
    drop(topic="x", ds=at.dsn, yes=True)
    assert [row[0] for row in at.sql("SELECT kafka_topic FROM outbox_dead")] == ["y", "y"]
    replay([5], ds=at.dsn)
    assert at.sql("SELECT id, kafka_topic FROM outbox") == [(5, "y")]
    assert at.sql("SELECT create_time FROM outbox_dead") == [(datetime(2026, 1, 3, tzinfo=UTC),)]
    with pytest.raises(InvalidInput, match="same id is in the outbox"):
        replay(every=True, ds=at.dsn)


@pytest.mark.parametrize("shape", Shape)
def test_a_row_changed_meanwhile_is_dead_as_changed(stack: Stack, dsn: str, topic_prefix: str, shape: Shape) -> None:
    at = Place(stack, dsn, topic_prefix, shape=shape)
    settings = taken_over(at.settings()).settings
    at.stash(Message(topic="wrong", key="k", value="1"))
    deimos = shape is Shape.DEIMOS
    time, topic = ("created_at AT TIME ZONE 'UTC'", "topic") if deimos else ("create_time", "kafka_topic")
    ((id_, created),) = at.sql(f"SELECT id, {time} FROM outbox")
    progress = recorded((id_, created, dead(Kind.NO_TOPIC, "it is not there")))
    with psycopg.connect(at.dsn) as operator, psycopg.connect(at.dsn, autocommit=True) as ours:
        operator.execute(f"UPDATE outbox SET {topic} = 'right'".encode())
        settlement = Settlement(PostgresSettlement(ours, settings.outbox, shape, Settling.DELETE))
        with ThreadPoolExecutor(1) as pool:
            settled = pool.submit(settlement.execute, progress)
            eventually(lambda: at.sql("SELECT 1 FROM pg_locks WHERE NOT granted"), RELAYED_SECONDS)
            operator.commit()
            assert settled.result(60) == 1
    assert at.pending() == 0
    assert at.sql("SELECT kafka_topic, kind FROM outbox_dead") == [("right", "no-topic")]
