"""Outboxes that no relay polls: messages in the WAL alone, and rows that are deleted as soon as they are written."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.tail.logged import OUTBOX, Logged, logged, read_rows, topics
from thresher.core.errors import InvalidInput
from thresher.db.names import TableName
from thresher.outbox import (
    InvalidMessage,
    Message,
    MessageNotStored,
    NoSlot,
    NotInTransaction,
    Outbox,
    Shape,
    create_schema,
)
from thresher.publisher.dispatcher import Dispatcher
from thresher.tail.log_source import LogSource, TableSource

WAYS: dict[str, dict[str, Any]] = {"log": {"via": "log"}, "passing": {"keep": False}}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def log(dsn: str, way: str) -> Iterator[Logged]:
    with logged(dsn, via="log" if way == "log" else "table") as made:
        yield made


def outbox(log: Logged, way: str, **options: Any) -> Outbox:
    return Outbox(**WAYS[way], slot=options.pop("slot", log.slot), **options)


def rows(log: Logged) -> int:
    found = log.connection.execute("SELECT count(*) FROM outbox").fetchone()
    assert found is not None
    return int(found[0])


def test_messages_are_read_from_the_log_and_no_row_stays(log: Logged, way: str) -> None:
    made = outbox(log, way)
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    message = Message(
        topic="orders", key=b"\0k", value="ä", headers=[("a", None), ("ü", b"\xff")], partition=3, timestamp=moment
    )
    with log.connection.transaction():
        assert made.stash(log.connection, message) is None
        assert made.stash_many(log.connection, [message, Message(topic="t")]) == 2
        assert made.stash_many(log.connection, []) == 0
    with log.stream() as stream:
        found = [row for chunk in read_rows(stream, 3) for row in chunk.rows]
    content = ("orders", b"\0k", "ä".encode(), ("a", "ü"), (None, b"\xff"), 3, moment, None)
    assert [row[2:] for row in found] == [content, content, ("t", None, None, (), (), None, None, None)]
    assert len({row[0] for row in found}) == 3
    assert rows(log) == 0


def test_rolled_back_messages_are_never_read(log: Logged, way: str) -> None:
    made = outbox(log, way)
    with log.connection.transaction(force_rollback=True):
        made.stash(log.connection, Message(topic="never"))
    with log.connection.transaction():
        made.stash(log.connection, Message(topic="one"))
        with log.connection.transaction(force_rollback=True):
            made.stash_many(log.connection, [Message(topic="never")] * 3)
        made.stash(log.connection, Message(topic="two"))
    with log.stream() as stream:
        assert topics(read_rows(stream, 2)) == ["one", "two"]


def test_many_messages_are_read_in_order(log: Logged, way: str) -> None:
    messages = [Message(topic="t", key=b"%d" % number, value=b"v" * 2000) for number in range(5000)]
    with log.connection.transaction():
        outbox(log, way).stash_many(log.connection, messages)
    with log.stream() as stream:
        keys = [row[3] for chunk in read_rows(stream, 5000) for row in chunk.rows]
    assert keys == [message.key for message in messages]
    assert rows(log) == 0


def test_no_two_messages_of_a_transaction_have_one_id(log: Logged, way: str) -> None:
    """The dead table keeps one row for each id and create time. A batch has more messages than its successor bytes."""
    made = outbox(log, way)
    with log.connection.transaction():
        for _ in range(2):
            made.stash_many(log.connection, [Message(topic="t")] * 999)
            made.stash(log.connection, Message(topic="t"))
    with log.stream() as stream:
        ids = [row[0] for chunk in read_rows(stream, 2000) for row in chunk.rows]
    assert ids == sorted(set(ids))


def test_messages_are_written_in_pipeline_mode_too(log: Logged, way: str) -> None:
    made = outbox(log, way)
    with log.connection.transaction(), log.connection.pipeline():
        made.stash(log.connection, Message(topic="one"))
        made.stash_many(log.connection, [Message(topic="two"), Message(topic="three")])
    with log.stream() as stream:
        assert topics(read_rows(stream, 3)) == ["one", "two", "three"]
    assert rows(log) == 0


def test_messages_without_a_slot_are_refused_in_a_usable_transaction(log: Logged, way: str) -> None:
    now = [100.0]
    made = outbox(log, way, slot="nowhere", clock=lambda: now[0])
    with log.connection.transaction():
        for stash in (made.stash, lambda connection, message: made.stash_many(connection, [message])):
            with pytest.raises(NoSlot, match="thresher tail slot create"):
                stash(log.connection, Message(topic="t"))
        log.connection.execute("CREATE TABLE mine ()")
    assert log.connection.execute("SELECT to_regclass('mine') IS NOT NULL").fetchone() == (True,)


def test_the_slot_is_looked_up_once_a_second(log: Logged, way: str) -> None:
    now = [100.0]
    made = outbox(log, way, clock=lambda: now[0])

    def stash() -> None:
        with log.connection.transaction():
            made.stash(log.connection, Message(topic="t"))

    stash()
    log.slots.drop(log.slot)
    now[0] += 0.9
    stash()
    now[0] += 0.2
    with pytest.raises(NoSlot):
        stash()
    log.slots.create(log.slot, failover=False)
    # A missing slot is looked up by every stash.
    stash()


def test_a_slot_of_another_database_does_not_count(log: Logged, way: str, dsn: str) -> None:
    other = psycopg.conninfo.make_conninfo(dsn, dbname="postgres")
    with psycopg.connect(other) as connection, pytest.raises(NoSlot):
        outbox(log, way).stash(connection, Message(topic="t"))


def test_messages_are_checked_as_for_a_table(log: Logged, way: str) -> None:
    made = outbox(log, way)
    with log.connection.transaction():
        with pytest.raises(InvalidMessage):
            made.stash(log.connection, Message(topic="no topic"))
        with pytest.raises(InvalidMessage):
            made.stash_many(log.connection, [Message(topic="t"), Message(topic="t", value=b"v" * 1_000_001)])
    with pytest.raises(NotInTransaction):
        made.stash(log.connection, Message(topic="t"))


def test_messages_in_the_log_have_no_receipts(log: Logged, way: str) -> None:
    with log.connection.transaction(), pytest.raises(InvalidInput, match="none that a receipt could stand for"):
        outbox(log, way).stash_many(log.connection, [Message(topic="t")], receipts=True)
    with pytest.raises(InvalidInput, match="a tail sends them"):
        Dispatcher(lambda: log.connection, {}, outbox=outbox(log, way))


def test_in_autocommit_many_messages_are_one_transaction(dsn: str) -> None:
    with logged(dsn, via="log") as log:
        made = Outbox(via="log", slot=log.slot, require_transaction=False)
        made.stash_many(log.connection, [Message(topic="t", value=b"v" * 500_000)] * 20)
        with log.stream() as stream:
            positions = [position for chunk in read_rows(stream, 20) for position in chunk.positions]
        assert len({position.commit for position in positions}) == 1


def test_messages_with_other_prefixes_or_without_transaction_are_ignored(dsn: str) -> None:
    with logged(dsn, via="log") as log:
        log.connection.execute("SELECT pg_logical_emit_message(false, 'thresher:outbox', 'untied')")
        log.connection.execute("SELECT pg_logical_emit_message(true, 'thresher:other', 'x')")
        log.connection.execute("SELECT outbox_emit('rubbish')")
        log.stash("one", via="log", slot=log.slot)
        with log.stream() as stream:
            found = [row for chunk in read_rows(stream, 2) for row in chunk.rows]
            assert stream.refused == (0, None)
        assert [(row[2], row[4], row[9]) for row in found] == [("", b"rubbish", "message"), ("one", None, None)]


@pytest.mark.parametrize("shape", [Shape.GOHARVEST, Shape.DEIMOS])
def test_rows_of_other_shapes_leave_their_table_too(dsn: str, shape: Shape) -> None:
    with logged(dsn) as log:
        log.connection.execute("DROP TABLE outbox")
        create_schema(log.connection, OUTBOX, shape)
        log.connection.execute(f"ALTER PUBLICATION {log.slot} SET TABLE outbox")
        log.source = TableSource(table=OUTBOX, shape=shape)
        with log.connection.transaction():
            messages = [Message(topic="t", key=b"%d" % number) for number in range(3)]
            Outbox(shape=shape, keep=False, slot=log.slot).stash_many(log.connection, messages)
        with log.stream() as stream:
            assert [row[3] for chunk in read_rows(stream, 3) for row in chunk.rows] == [b"0", b"1", b"2"]
        assert rows(log) == 0


def test_the_example_of_the_docs_works(dsn: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tail.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with logged(dsn, via="log") as log:
        log.source = LogSource(outbox=TableName(table="orders"))
        log.slots.emitter(log.source.outbox).create()
        exec(example.replace('via="log"', f'via="log", slot="{log.slot}"'), {"connection": log.connection})  # noqa: S102
        with log.stream() as stream:
            assert topics(read_rows(stream, 1)) == ["orders"]


@pytest.mark.parametrize("event", ["INSERT", "DELETE"])
def test_a_rule_that_drops_or_keeps_rows_is_noticed(dsn: str, event: str) -> None:
    with logged(dsn) as log:
        log.connection.execute(
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            f"CREATE TRIGGER nothing BEFORE {event} ON outbox FOR EACH ROW EXECUTE FUNCTION nothing()"
        )
        with pytest.raises(MessageNotStored), log.connection.transaction():
            Outbox(keep=False, slot=log.slot).stash(log.connection, Message(topic="t"))
