"""Deleting published rows from a table that a tail reads from the WAL."""

from collections.abc import Iterator

import pytest

from tests.tail.logged import OUTBOX, Logged, logged
from thresher.db import statement
from thresher.db.outbox_store import PendingRow
from thresher.db.postgres.dead_rows import PostgresDeadRows
from thresher.db.postgres.replication.dead_changes import DeadChanges
from thresher.db.postgres.replication.tailed_table import TailedTable, Trimmed
from thresher.db.shape import Shape

FIRST = -(2**63)


@pytest.fixture
def log(dsn: str) -> Iterator[Logged]:
    with logged(dsn) as made:
        yield made


def insert(log: Logged, *topics: str, created: str = "now() - interval '1 hour'") -> None:
    for topic in topics:
        log.connection.execute(f"INSERT INTO outbox (kafka_topic, create_time) VALUES ('{topic}', {created})")


def left(log: Logged) -> list[str]:
    return [topic for (topic,) in log.connection.execute("SELECT kafka_topic FROM outbox ORDER BY id").fetchall()]


def trim(log: Logged, mark: str, first_xid: int, *, rows: int = 100, floor: int = FIRST) -> Trimmed:
    table = TailedTable(log.connection, OUTBOX, Shape.THRESHER)
    return table.trim(mark, first_xid=first_xid, keep_seconds=60, rows=rows, floor=floor)


def test_only_old_rows_between_first_and_mark_are_deleted(log: Logged) -> None:
    table = TailedTable(log.connection, OUTBOX, Shape.THRESHER)
    insert(log, "before")
    first = log.slots.next_transaction()
    insert(log, "due", "due too")
    insert(log, "young", created="now()")
    mark, _ = table.mark()
    insert(log, "behind the mark")
    assert trim(log, mark, first).deleted == 2
    assert left(log) == ["before", "young", "behind the mark"]
    assert table.older(first) == 1


def test_rows_that_stay_long_are_skipped_by_deletion(log: Logged) -> None:
    table = TailedTable(log.connection, OUTBOX, Shape.THRESHER)
    insert(log, "before", "before too")
    first = log.slots.next_transaction()
    insert(log, "later", created="now() + interval '1 day'")
    insert(log, "due")
    mark, _ = table.mark()
    passed = trim(log, mark, first, rows=2)
    assert (passed.deleted, passed.looked) == (0, 2)
    passed = trim(log, mark, first, rows=2, floor=passed.floor)
    assert (passed.deleted, passed.looked) == (1, 2)
    assert left(log) == ["before", "before too", "later"]
    assert trim(log, mark, first, floor=passed.floor) == Trimmed(0, 0, passed.floor)


def test_a_row_of_this_moment_is_checked_again(log: Logged) -> None:
    """The row may be younger than the deleting transaction, and is due a moment later."""
    table = TailedTable(log.connection, OUTBOX, Shape.THRESHER)
    first = log.slots.next_transaction()
    insert(log, "now", created="now() + interval '1 second'")
    mark, _ = table.mark()
    passed = trim(log, mark, first)
    assert (passed.deleted, passed.looked) == (0, 1)
    assert trim(log, mark, first, floor=passed.floor).looked == 1


def test_a_malformed_row_becomes_dead_unchanged(log: Logged) -> None:
    log.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_header_keys, kafka_header_values, kafka_timestamp) VALUES "
        "('t', '{{a,NULL},{b,\"\"}}', ARRAY['x'::bytea, NULL], 'infinity'), "
        "('t', '{}', '{}', '20000-01-01 00:00:00+00'), ('t', '{}', '{}', '0044-03-15 12:00:00+00 BC'), "
        "('t', array_fill('ü'::text, ARRAY[10001], ARRAY[5]), array_fill(NULL::bytea, ARRAY[3, 4]), NULL)"
    )
    columns = "kafka_topic, kafka_header_keys, kafka_header_values, kafka_timestamp"
    before = log.connection.execute(f"SELECT row({columns})::text FROM outbox ORDER BY id").fetchall()
    log.connection.execute(statement("outbox_dead_create", OUTBOX))
    rows: list[PendingRow] = []
    with log.stream() as stream:
        while len(rows) < 4:
            chunk = stream.read(10, 2**20, 30)
            assert chunk is not None
            rows += chunk.rows
    assert [row[9] for row in rows] == ["headers", "timestamp", "timestamp", "headers"]
    dead = DeadChanges(log.observer, OUTBOX, Shape.THRESHER, in_table=True)
    dead.set_aside([(row, ("malformed", "why", 1, False)) for row in rows])
    assert left(log) == []
    after = log.connection.execute(f"SELECT row({columns})::text FROM outbox_dead ORDER BY id").fetchall()
    assert after == before


def test_a_dead_row_not_yet_visible_can_be_replayed(log: Logged) -> None:
    log.connection.execute(statement("outbox_dead_create", OUTBOX))
    insert(log, "t")
    # The row became dead before it was visible in its table, and it is in both.
    log.connection.execute(
        "INSERT INTO outbox_dead (id, create_time, kafka_topic, kafka_header_keys, kafka_header_values, "
        "kind, reason, attempts, blocking) "
        "SELECT id, create_time, kafka_topic, '{}', '{}', 'no-topic', 'why', 0, false FROM outbox"
    )
    assert PostgresDeadRows(log.connection, OUTBOX, Shape.THRESHER).replay() == 1
    assert left(log) == ["t"]
    assert log.connection.execute("SELECT count(*) FROM outbox_dead").fetchone() == (0,)
