import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus

from thresher.db import TableName
from thresher.outbox import (
    InvalidMessage,
    Message,
    MessageNotStored,
    NotInTransaction,
    Outbox,
    Shape,
    UnsupportedConnection,
    create_schema,
)
from thresher.outbox.shape import bucket_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = "kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
# The partition key stands as a list of one in the place of the header names.
DEIMOS_COLUMNS = "topic, key, message, ARRAY[partition_key]"
EVERY_BYTE = bytes(range(256))


@pytest.fixture(params=Shape, ids=lambda shape: shape.value)
def shape(request: pytest.FixtureRequest) -> Shape:
    return Shape(request.param)


@pytest.fixture
def observer(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def make(connection: psycopg.Connection[Any], shape: Shape = Shape.THRESHER, table: str = "outbox") -> Outbox:
    create_schema(connection, TableName(table=table), shape)
    connection.commit()
    return Outbox(table, shape=shape)


def count(connection: psycopg.Connection[Any], table: str = "outbox") -> int:
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
    assert row is not None
    return int(row[0])


def stored(connection: psycopg.Connection[Any], shape: Shape = Shape.THRESHER) -> list[tuple[Any, ...]]:
    columns = DEIMOS_COLUMNS if shape is Shape.DEIMOS else COLUMNS
    return connection.execute(f"SELECT {columns} FROM outbox ORDER BY id".encode()).fetchall()


def test_a_message_is_visible_only_after_the_callers_commit(
    connection: psycopg.Connection[Any], observer: psycopg.Connection[Any], shape: Shape
) -> None:
    outbox = make(connection, shape)
    outbox.stash(connection, Message(topic="t", key="k", value="v"))
    outbox.stash_many(connection, [Message(topic="t", key="k", value=str(n)) for n in range(10)])
    assert connection.pgconn.transaction_status == TransactionStatus.INTRANS
    assert count(observer) == 0
    connection.commit()
    assert count(observer) == 11


def test_a_message_is_gone_with_the_callers_rollback(connection: psycopg.Connection[Any], shape: Shape) -> None:
    outbox = make(connection, shape)
    outbox.stash(connection, Message(topic="t", key="k", value="v"))
    outbox.stash_many(connection, [Message(topic="t", key="k", value="v")] * 3)
    connection.rollback()
    assert count(connection) == 0


def test_a_savepoint_of_the_caller_takes_its_messages_along(connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    outbox.stash(connection, Message(topic="t", value="kept"))
    with connection.transaction(force_rollback=True):
        outbox.stash(connection, Message(topic="t", value="dropped"))
    assert [row[2] for row in stored(connection)] == [b"kept"]


@pytest.mark.parametrize("many", [False, True])
def test_a_message_is_stored_unchanged(connection: psycopg.Connection[Any], many: bool) -> None:
    outbox = make(connection)
    messages = [
        Message(topic="a", key=EVERY_BYTE, value=EVERY_BYTE, headers=[("h", EVERY_BYTE), ("h", b""), ("ü", None)]),
        Message(topic="b", key=None, value=None),
        Message(topic="c", key=b"", value=b"", headers={"x": "y"}, partition=0, timestamp=NOON),
        Message(topic="d", key="schlüssel", value="wert", partition=2**31 - 1, headers=[("only", None)]),
    ]
    if many:
        assert outbox.stash_many(connection, iter(messages)) == 4
    else:
        for message in messages:
            outbox.stash(connection, message)
    assert stored(connection) == [
        ("a", EVERY_BYTE, EVERY_BYTE, ["h", "h", "ü"], [EVERY_BYTE, b"", None]),
        ("b", None, None, [], []),
        ("c", b"", b"", ["x"], [b"y"]),
        ("d", "schlüssel".encode(), b"wert", ["only"], [None]),
    ]
    extras = connection.execute(
        "SELECT kafka_partition, kafka_timestamp, dispatched_time, leader_id FROM outbox ORDER BY id"
    )
    assert extras.fetchall() == [
        (None, None, None, None),
        (None, None, None, None),
        (0, NOON, None, None),
        (2**31 - 1, None, None, None),
    ]


@pytest.mark.parametrize("many", [False, True])
def test_goharvests_table_stores_text_and_the_servers_time(connection: psycopg.Connection[Any], many: bool) -> None:
    outbox = make(connection, Shape.GOHARVEST)
    messages = [
        Message(topic="t", key="ü" * 100, value="ü" * 10_000, headers=[("h", "1"), ("h", "2")]),
        Message(topic="t", key=b"k", value=None),
    ]
    if many:
        outbox.stash_many(connection, messages)
    else:
        for message in messages:
            outbox.stash(connection, message)
    assert stored(connection) == [
        ("t", "ü" * 100, "ü" * 10_000, ["h", "h"], ["1", "2"]),
        ("t", "k", None, [], []),
    ]
    row = connection.execute(
        "SELECT bool_and(create_time BETWEEN now() AND clock_timestamp()), bool_and(leader_id IS NULL) FROM outbox"
    ).fetchone()
    assert row == (True, True)


def test_the_bucket_column_agrees_with_the_python_function(connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    keys = [None, b"", EVERY_BYTE, *(f"key-{n}".encode() for n in range(200))]
    outbox.stash_many(connection, [Message(topic="t", key=key) for key in keys])
    rows = connection.execute("SELECT id, kafka_key, bucket FROM outbox ORDER BY id").fetchall()
    assert [bucket for _, _, bucket in rows] == [id_ % 64 if key is None else bucket_of(key) for id_, key, _ in rows]
    assert len({bucket for _, _, bucket in rows}) > 50


def test_ids_follow_the_order_of_the_messages(connection: psycopg.Connection[Any], shape: Shape) -> None:
    outbox = make(connection, shape)
    outbox.stash_many(connection, [Message(topic="t", key="k", value=f"{n}") for n in range(1000)])
    values = [row[2] if isinstance(row[2], str) else row[2].decode() for row in stored(connection, shape)]
    assert values == [f"{n}" for n in range(1000)]


@pytest.mark.parametrize("many", [False, True])
def test_a_refused_message_leaves_the_transaction_usable_and_writes_nothing(
    connection: psycopg.Connection[Any], many: bool
) -> None:
    outbox = make(connection)
    outbox.stash(connection, Message(topic="t", value="before"))
    bad = (
        [Message(topic="t", value="good"), Message(topic="not good", value="x")] if many else Message(topic="not good")
    )
    with pytest.raises(InvalidMessage):
        outbox.stash_many(connection, bad) if isinstance(bad, list) else outbox.stash(connection, bad)
    assert connection.pgconn.transaction_status == TransactionStatus.INTRANS
    outbox.stash(connection, Message(topic="t", value="after"))
    connection.commit()
    assert [row[2] for row in stored(connection)] == [b"before", b"after"]


def test_autocommit_outside_a_transaction_is_refused(dsn: str, connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    with psycopg.connect(dsn, autocommit=True) as loose:
        with pytest.raises(NotInTransaction, match=r"with connection.transaction\(\)"):
            outbox.stash(loose, Message(topic="t"))
        with pytest.raises(NotInTransaction):
            outbox.stash_many(loose, [Message(topic="t")])
        assert count(loose) == 0
        with loose.transaction():
            outbox.stash(loose, Message(topic="t"))
        assert count(loose) == 1


def test_autocommit_is_allowed_on_request(dsn: str, connection: psycopg.Connection[Any]) -> None:
    make(connection)
    with psycopg.connect(dsn, autocommit=True) as loose:
        Outbox(require_transaction=False).stash(loose, Message(topic="t"))
        assert count(loose) == 1


def test_other_drivers_connections_are_refused(connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    with pytest.raises(UnsupportedConnection, match="not str"):
        outbox.stash("host=localhost", Message(topic="t"))  # type: ignore[arg-type]


def test_stashing_no_messages_does_nothing(connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    assert outbox.stash_many(connection, []) == 0
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE


def test_messages_travel_in_the_callers_pipeline(connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    with connection.pipeline():
        outbox.stash(connection, Message(topic="t", value="1"))
        outbox.stash_many(connection, [Message(topic="t", value="2"), Message(topic="t", value="3")])
    assert [row[2] for row in stored(connection)] == [b"1", b"2", b"3"]


def test_a_row_factory_of_the_caller_does_not_matter(
    dsn: str, connection: psycopg.Connection[Any], shape: Shape
) -> None:
    outbox = make(connection, shape)
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as caller:
        outbox.stash_many(caller, [Message(topic="t", key="k")])
    assert count(connection) == 1


@pytest.mark.parametrize(
    "name", ['we"ird', "a.b", "Größe ✓", "x" * 58, "select", "o; DROP TABLE outbox; --", "%s", "{table}"]
)
def test_any_table_name_is_just_a_name(connection: psycopg.Connection[Any], name: str) -> None:
    outbox = make(connection, table=name)
    outbox.stash(connection, Message(topic="t"))
    outbox.stash_many(connection, [Message(topic="t")] * 2)
    assert count(connection, name) == 3


def test_a_table_may_have_its_own_schema(connection: psycopg.Connection[Any]) -> None:
    connection.execute('CREATE SCHEMA "my.schema"')
    create_schema(connection, TableName(table="outbox", schema="my.schema"))
    Outbox("outbox", schema="my.schema").stash(connection, Message(topic="t"))
    assert connection.execute('SELECT count(*) FROM "my.schema".outbox').fetchone() == (1,)


@pytest.mark.parametrize("many", [False, True])
def test_a_missing_table_is_reported_by_the_driver(connection: psycopg.Connection[Any], many: bool) -> None:
    outbox, message = Outbox("nowhere"), Message(topic="t")
    with pytest.raises(psycopg.errors.UndefinedTable):
        outbox.stash_many(connection, [message]) if many else outbox.stash(connection, message)


def test_a_connection_lost_during_stash_many_leaves_nothing(
    dsn: str, connection: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    outbox = make(connection)
    observer.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END'"
    )
    observer.execute("CREATE TRIGGER slow BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION slow()")
    with psycopg.connect(dsn) as doomed:
        pid = doomed.info.backend_pid
        outbox.stash(doomed, Message(topic="t", value="first"))
        # Far more than the socket's buffers hold: the session is terminated while the server reads the messages.
        messages = [Message(topic="t", key=str(n), value=b"x" * 10_000) for n in range(20_000)]
        killer = threading.Timer(1.0, lambda: observer.execute("SELECT pg_terminate_backend(%s)", [pid]))
        killer.start()
        with pytest.raises(psycopg.OperationalError):
            outbox.stash_many(doomed, messages)
        killer.join()
        assert doomed.broken
    assert count(observer) == 0


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("encoding", ["utf8", "latin1", "euc_jp", "sql_ascii"])
def test_text_is_stored_correctly_or_refused_under_any_client_encoding(
    dsn: str, connection: psycopg.Connection[Any], shape: Shape, encoding: str, many: bool
) -> None:
    outbox = make(connection, shape)
    stored_text = {"utf8": ["ü", "語"], "latin1": ["ü"], "euc_jp": ["ü", "語"], "sql_ascii": []}[encoding]
    with psycopg.connect(dsn, client_encoding=encoding) as caller:
        for text in ["ü", "語"]:
            texts: dict[str, Any] = {"partition_key": text} if shape is Shape.DEIMOS else {"headers": [(text, text)]}
            message = Message(topic="t", key="k", **texts)
            if text in stored_text:
                outbox.stash_many(caller, [message]) if many else outbox.stash(caller, message)
            else:
                with pytest.raises(InvalidMessage, match="cannot be stored"):
                    outbox.stash_many(caller, [message]) if many else outbox.stash(caller, message)
                assert caller.pgconn.transaction_status != TransactionStatus.INERROR
    assert [row[3] for row in stored(connection, shape)] == [[text] for text in stored_text]


@pytest.mark.parametrize("many", [False, True])
def test_a_callers_session_cursors_and_adapters_do_not_matter(
    dsn: str, connection: psycopg.Connection[Any], shape: Shape, many: bool
) -> None:
    outbox = make(connection, shape)

    class Shouting(psycopg.adapt.Dumper):
        def dump(self, obj: Any) -> bytes:  # noqa: ARG002
            return b"WRONG"

    texts: dict[str, Any] = {"partition_key": "h"} if shape is Shape.DEIMOS else {"headers": [("h", "x")]}
    message = Message(topic="t", key="", value="v", **texts)
    rows: dict[Shape, tuple[Any, ...]] = {
        Shape.THRESHER: ("t", b"", b"v", ["h"], [b"x"]),
        Shape.GOHARVEST: ("t", "", "v", ["h"], ["x"]),
        Shape.DEIMOS: ("t", b"", b"v", ["h"]),
    }
    expected: list[tuple[Any, ...]] = []
    for factory in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(dsn, cursor_factory=factory) as caller:
            caller.execute("SET standard_conforming_strings = off")
            for kind in (str, bytes, list, int):
                caller.adapters.register_dumper(kind, Shouting)
            outbox.stash_many(caller, [message]) if many else outbox.stash(caller, message)
            expected.append(rows[shape])
    assert stored(connection, shape) == expected


@pytest.mark.parametrize("many", [False, True])
def test_a_table_that_drops_rows_is_noticed(connection: psycopg.Connection[Any], many: bool) -> None:
    outbox, message = make(connection), Message(topic="t")
    connection.execute("CREATE FUNCTION eat() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    connection.execute("CREATE TRIGGER eat BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION eat()")
    with pytest.raises(MessageNotStored, match="1 message"):
        outbox.stash_many(connection, [message]) if many else outbox.stash(connection, message)


def test_a_pipeline_in_autocommit_is_no_transaction(dsn: str, connection: psycopg.Connection[Any]) -> None:
    outbox = make(connection)
    with psycopg.connect(dsn, autocommit=True) as loose:
        with loose.pipeline():
            loose.execute("SELECT 1")
            with pytest.raises(NotInTransaction):
                outbox.stash(loose, Message(topic="t"))
            with loose.transaction():
                outbox.stash(loose, Message(topic="t"))
                outbox.stash_many(loose, [Message(topic="t")] * 2)
        assert count(loose) == 3
