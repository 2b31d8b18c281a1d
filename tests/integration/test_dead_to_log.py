"""Dead rows are replayed into the WAL only where a tail reads them."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.tail.logged import Logged, logged
from thresher.core.errors import InvalidInput
from thresher.db import TableName, statement
from thresher.outbox import NoSlot
from thresher.outbox.dead_to_log import replay_to_log
from thresher.tail.chunk import Chunk

OUTBOX = TableName(table="outbox")


@pytest.fixture
def log(dsn: str) -> Iterator[Logged]:
    with logged(dsn, via="log") as made:
        run = made.connection.execute
        run(statement("outbox_dead_create", TableName(table="outbox", schema="public")))
        run("CREATE TABLE thresher_relay (name text, outbox text, mode text)")
        for id_, topic, value in ((1, "orders", b"v"), (2, "", b"\x07")):
            run(
                "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_value, kafka_header_keys, "
                "kafka_header_values, kind, reason, attempts, blocking) "
                "VALUES (%s, now(), %s, %s, '{}', '{}', 'malformed', '', 1, false)",
                [id_, topic, value],
            )
        yield made


def dead(log: Logged) -> int:
    found = log.connection.execute("SELECT count(*) FROM outbox_dead").fetchone()
    return 0 if found is None else int(found[0])


def replay(log: Logged, outbox: TableName = OUTBOX, slot: str | None = None) -> int:
    with log.connection.transaction():
        return replay_to_log(log.connection, outbox, slot=slot or log.slot)


def tailed(log: Logged, outbox: str, mode: str = "tail") -> None:
    log.connection.execute("INSERT INTO thresher_relay VALUES ('t', %s, %s)", [outbox, mode])


@pytest.mark.parametrize(
    ("reader", "mode"),
    [('"other"', "tail"), ('"public"."outbox"', "tail"), ('"outbox"', "exactly-once")],
    ids=["another outbox", "a table", "a relay"],
)
def test_a_row_that_no_tail_would_read_stays_dead(log: Logged, reader: str, mode: str) -> None:
    tailed(log, reader, mode)
    with pytest.raises(InvalidInput, match="not read from the WAL"):
        replay(log)
    assert dead(log) == 2


def test_rows_of_a_table_stay_dead(log: Logged) -> None:
    tailed(log, '"public"."outbox"')
    with pytest.raises(InvalidInput, match="leave --to-log out"):
        replay(log, TableName(table="outbox", schema="public"))
    assert dead(log) == 2


def test_rows_stay_dead_without_a_slot(log: Logged) -> None:
    tailed(log, '"outbox"')
    with pytest.raises(NoSlot):
        replay(log, slot="nobodys")
    assert dead(log) == 2


def test_rows_without_control_rows_stay_dead(log: Logged) -> None:
    log.connection.execute("DROP TABLE thresher_relay")
    with pytest.raises(InvalidInput, match="not read from the WAL"):
        replay(log)
    assert dead(log) == 2


def test_headers_that_no_message_can_have_stay_dead(log: Logged) -> None:
    tailed(log, '"outbox"')
    log.connection.execute("UPDATE outbox_dead SET kafka_header_keys = '{NULL}', kafka_header_values = '{NULL}'")
    with pytest.raises(InvalidInput, match="headers"):
        replay(log)
    assert dead(log) == 2


def test_an_unreadable_message_is_replayed_unchanged(log: Logged) -> None:
    tailed(log, '"outbox"')
    assert replay(log) == 2
    assert dead(log) == 0
    rows: list[tuple[object, ...]] = []
    with log.stream() as stream:
        while len(rows) < 2:
            chunk = stream.read(10, 2**20, 30)
            assert isinstance(chunk, Chunk)
            rows += chunk.rows
    assert [(row[2], row[4], row[9]) for row in rows] == [("orders", b"v", None), ("", b"\x07", "message")]


def test_a_failed_replay_leaves_the_callers_connection_usable(log: Logged) -> None:
    with psycopg.connect(log.dsn) as connection, pytest.raises(InvalidInput):
        replay_to_log(connection, OUTBOX, slot=log.slot)
    assert dead(log) == 2
