"""Receipts of stashed messages, and the limit that keeps a writer from filling an outbox that nobody empties."""

from collections.abc import Iterator
from datetime import UTC
from typing import Any

import psycopg
import pytest

from tests.set_clock import SetClock
from thresher.db import TableName, statement
from thresher.outbox import (
    InvalidMessage,
    Limits,
    Message,
    MessageNotStored,
    NoReceiptsInPipeline,
    Outbox,
    OutboxFull,
    Receipt,
    Shape,
    create_schema,
)

NAME = TableName(table="outbox")


@pytest.fixture(params=list(Shape), ids=lambda shape: shape.value)
def shape(request: pytest.FixtureRequest) -> Shape:
    return Shape(request.param)


@pytest.fixture
def own(dsn: str, shape: Shape) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        create_schema(connection, NAME, shape)
        connection.commit()
        yield connection
        connection.rollback()


def message(number: int = 0) -> Message:
    return Message(topic="t", key="k", value=str(number))


def stored(connection: psycopg.Connection[Any]) -> list[Receipt]:
    columns = {row.name for row in connection.execute("SELECT * FROM outbox LIMIT 0").description or ()}
    created = "create_time" if "create_time" in columns else "created_at AT TIME ZONE 'UTC'"
    rows = connection.execute(f"SELECT id, {created} FROM outbox ORDER BY id".encode()).fetchall()
    return [Receipt(table=NAME, id=id_, create_time=time.astimezone(UTC)) for id_, time in rows]


def test_receipts_name_the_rows_in_order(own: psycopg.Connection[Any], shape: Shape) -> None:
    outbox = Outbox(shape=shape)
    # The time zone of the caller's session does not matter.
    own.execute("SET TimeZone = 'Asia/Kathmandu'; SET DateStyle = 'German'")
    single = [outbox.stash(own, message(number)) for number in range(2)]
    several = outbox.stash_many(own, (message(number) for number in range(2, 30)), receipts=True)
    own.execute("SET DateStyle = 'ISO'")
    assert [*single, *several] == stored(own)
    value = "message" if shape is Shape.DEIMOS else "kafka_value"
    values = own.execute(f"SELECT {value}::text FROM outbox ORDER BY id".encode()).fetchall()
    assert len(set(values)) == 30
    assert outbox.stash_many(own, [], receipts=True) == []
    assert outbox.stash_many(own, [message()]) == 1


def test_in_a_pipeline_there_are_no_receipts(own: psycopg.Connection[Any], shape: Shape) -> None:
    outbox = Outbox(shape=shape)
    with own.pipeline():
        assert outbox.stash(own, message()) is None
        with pytest.raises(NoReceiptsInPipeline):
            outbox.stash_many(own, [message()], receipts=True)
        assert outbox.stash_many(own, [message()]) == 1
    assert len(stored(own)) == 2
    clock = SetClock()
    limited = Outbox(shape=shape, limits=Limits(outstanding=2), clock=clock)
    with own.pipeline():
        limited.stash(own, message())
        clock.now += 1.1
        with pytest.raises(OutboxFull):
            limited.stash(own, message())
        own.execute("SELECT 1")
    assert len(stored(own)) == 3


def test_a_refused_message_leaves_the_transaction_usable(own: psycopg.Connection[Any], shape: Shape) -> None:
    outbox = Outbox(shape=shape)
    outbox.stash(own, message())
    with pytest.raises(InvalidMessage):
        outbox.stash_many(own, [message(), Message(topic="no topic")], receipts=True)
    own.commit()
    assert len(stored(own)) == 1


@pytest.mark.parametrize(
    "dropping",
    [
        "CREATE RULE eat AS ON INSERT TO outbox DO INSTEAD NOTHING",
        (
            "CREATE FUNCTION eat() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
            "CREATE TRIGGER eat BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION eat()"
        ),
    ],
    ids=["rule", "trigger"],
)
def test_a_dropped_row_is_reported(own: psycopg.Connection[Any], shape: Shape, dropping: str) -> None:
    own.execute(dropping.encode())
    own.commit()
    outbox = Outbox(shape=shape)
    with pytest.raises(MessageNotStored, match="1 message"):
        outbox.stash(own, message())
    own.rollback()
    with pytest.raises(MessageNotStored, match="2 message"):
        outbox.stash_many(own, [message(), message()], receipts=True)


def test_a_writer_refuses_while_too_many_rows_wait(own: psycopg.Connection[Any], shape: Shape) -> None:
    clock = SetClock()
    outbox = Outbox(shape=shape, limits=Limits(outstanding=3), clock=clock)
    for number in range(4):
        clock.now += 1.1
        outbox.stash(own, message(number))
    own.execute("CREATE TABLE work (n int)")
    clock.now += 1.1
    for write in (outbox.stash, lambda connection, each: outbox.stash_many(connection, [each])):
        with pytest.raises(OutboxFull, match="more than 3 messages wait"):
            write(own, message())
    own.commit()
    assert len(stored(own)) == 4, "the transaction went on"
    assert own.execute("SELECT count(*) FROM work").fetchone() == (0,)
    sent = "UPDATE outbox SET dispatched_time = now()" if shape is Shape.THRESHER else "DELETE FROM outbox"
    own.execute(sent.encode())
    own.commit()
    with pytest.raises(OutboxFull):
        outbox.stash(own, message())
    clock.now += 1.1
    assert outbox.stash(own, message()) is not None


def test_waiting_rows_are_counted_once_a_second(own: psycopg.Connection[Any], shape: Shape) -> None:
    clock = SetClock()
    outbox = Outbox(shape=shape, limits=Limits(outstanding=1), clock=clock)
    for number in range(5):
        clock.now += 0.19
        outbox.stash(own, message(number))
    clock.now += 0.3
    with pytest.raises(OutboxFull):
        outbox.stash(own, message())
    # Another `Outbox` object counts by itself.
    with pytest.raises(OutboxFull):
        Outbox(shape=shape, limits=Limits(outstanding=4)).stash(own, message())
    assert Outbox(shape=shape, limits=Limits(outstanding=5)).stash(own, message()) is not None


def limited(shape: Shape, clock: SetClock) -> Outbox:
    return Outbox(shape=shape, limits=Limits(outstanding=3), clock=clock)


def test_uncommitted_rows_refuse_only_their_own_connection(
    own: psycopg.Connection[Any], shape: Shape, dsn: str
) -> None:
    clock = SetClock()
    outbox = limited(shape, clock)
    assert outbox.stash_many(own, [message(number) for number in range(9)]) == 9
    clock.now += 1.1
    with pytest.raises(OutboxFull):
        outbox.stash(own, message())
    with psycopg.connect(dsn) as other:
        assert outbox.stash(other, message()) is not None
        own.commit()
        clock.now += 1.1
        with pytest.raises(OutboxFull):
            # This connection has written, and is refused because of another connection's rows.
            outbox.stash(other, message())
        other.rollback()
        clock.now += 1.1
        with pytest.raises(OutboxFull):
            outbox.stash(other, message())
        # This transaction has written nothing, so its count holds for all connections.
        own.execute("DELETE FROM outbox")
        own.commit()
        with pytest.raises(OutboxFull):
            outbox.stash(own, message())


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_an_old_snapshot_counts_only_for_its_own_connection(
    own: psycopg.Connection[Any], shape: Shape, dsn: str, level: psycopg.IsolationLevel
) -> None:
    clock = SetClock()
    outbox = limited(shape, clock)
    own.isolation_level = level
    own.execute("SELECT FROM outbox")
    with psycopg.connect(dsn) as other:
        outbox.stash_many(other, [message(number) for number in range(9)])
        other.commit()
        clock.now += 1.1
        assert outbox.stash(own, message()) is not None, "its snapshot shows an empty table"
        with pytest.raises(OutboxFull):
            outbox.stash(other, message())


def test_a_count_that_fails_leaves_the_transaction_usable(
    own: psycopg.Connection[Any], shape: Shape, topic_prefix: str
) -> None:
    role = topic_prefix.replace("-", "_") + "writer"
    own.execute(f"CREATE ROLE {role}; GRANT INSERT ON outbox TO {role}; CREATE TABLE work (n int)".encode())
    created = "created_at" if shape is Shape.DEIMOS else "create_time"
    own.execute(f"GRANT SELECT (id, {created}) ON outbox TO {role}".encode())
    own.execute(f"GRANT ALL ON SCHEMA public TO {role}; GRANT INSERT ON work TO {role}".encode())
    own.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}".encode())
    own.commit()
    try:
        own.execute(f"SET ROLE {role}".encode())
        assert Outbox(shape=shape).stash(own, message()) is not None, "no other right is needed"
        own.execute("INSERT INTO work VALUES (1)")
        if shape is Shape.THRESHER:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                limited(shape, SetClock()).stash(own, message())
        own.commit()
    finally:
        own.rollback()
        own.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}".encode())
        own.commit()
    assert own.execute("SELECT count(*) FROM work").fetchone() == (1,)


def test_waiting_rows_are_counted_by_their_index(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        create_schema(connection, NAME)
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', convert_to('k' || n, 'UTF8') "
            "FROM generate_series(1, 20000) n"
        )
        # Statistics of a table in which every row is pending.
        connection.execute("ANALYZE outbox")
        connection.execute("UPDATE outbox SET dispatched_time = now()")
        query = psycopg.ClientCursor(connection).mogrify(statement("outbox_outstanding", NAME), {"most": 1001})
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {query}".encode()))
    assert "outbox_bucket_id_idx" in plan, plan
    assert "Seq Scan" not in plan, plan
