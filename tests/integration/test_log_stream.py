"""The stream of a slot on a real server: committed rows, once and in commit order, across faults."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.processes import eventually
from tests.tail.logged import OUTBOX, Logged, logged, read_commits, read_rows, read_until, topics
from thresher.db.postgres.replication.connection import ReplicationConnection, SlotBusy, SlotUnusable
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.devstack.postgres import Postgres, PostgresOptions
from thresher.outbox import Message, Outbox, Shape, create_schema
from thresher.tail.log_reader import LogReader
from thresher.tail.log_source import TableSource
from thresher.tail.slot import check_slot, require_readable, retained_bytes

# Settings of a server of these tests: it ends a replication connection that is silent for two seconds.
_IMPATIENT = {"wal_sender_timeout": "2s", "log_replication_commands": "off"}


@pytest.fixture
def log(dsn: str) -> Iterator[Logged]:
    with logged(dsn) as made:
        yield made


def test_rows_are_read_as_they_were_written(log: Logged) -> None:
    message = Message(
        topic="orders", key=b"\0k", value="ä", headers=[("a", b"1"), ("a", None), ("ü", "2")], partition=3
    )
    with log.stream() as stream, log.connection.transaction():
        Outbox().stash(log.connection, message)
        Outbox().stash_many(log.connection, [message, Message(topic="t")])
    with log.stream() as stream:
        rows = [row for chunk in read_rows(stream, 3) for row in chunk.rows]
    table = log.connection.execute("SELECT id, create_time FROM outbox ORDER BY id").fetchall()
    assert [row[:2] for row in rows] == table
    content = ("orders", b"\0k", "ä".encode(), ("a", "a", "ü"), (b"1", None, b"2"), 3, None, None)
    assert [row[2:] for row in rows] == [content, content, ("t", None, None, (), (), None, None, None)]


@pytest.mark.parametrize("shape", [Shape.GOHARVEST, Shape.DEIMOS])
def test_other_shapes_are_read(dsn: str, shape: Shape) -> None:
    with logged(dsn) as log:
        log.connection.execute("DROP TABLE outbox")
        create_schema(log.connection, OUTBOX, shape)
        log.connection.execute(f"ALTER PUBLICATION {log.slot} SET TABLE outbox")
        log.source = TableSource(table=OUTBOX, shape=shape)
        Outbox(shape=shape, require_transaction=False).stash(
            log.connection, Message(topic="t", key="k", value="v", headers={"a": "b"} if shape.value[0] == "g" else ())
        )
        with log.stream() as stream:
            ((row,),) = (chunk.rows for chunk in read_rows(stream, 1))
        headers = (("a",), (b"b",)) if shape is Shape.GOHARVEST else ((), ())
        assert row[2:10] == ("t", b"k", b"v", *headers, None, None, None)


def test_interleaved_transactions_are_read_in_commit_order(log: Logged, dsn: str) -> None:
    with log.stream() as stream, psycopg.connect(dsn) as long, psycopg.connect(dsn) as gone:
        Outbox().stash(long, Message(topic="long-1"))
        log.stash("short-1")
        Outbox().stash(gone, Message(topic="never"))
        Outbox().stash(long, Message(topic="long-2"))
        log.stash("short-2")
        gone.rollback()
        long.commit()
        log.stash("short-3")
        chunks = read_rows(stream, 5)
        assert topics(chunks) == ["short-1", "short-2", "long-1", "long-2", "short-3"]
        positions = [position for chunk in chunks for position in chunk.positions]
        assert positions == sorted(set(positions))
        # The changes themselves are in another order in the WAL.
        assert positions[2].change < positions[1].change
        times = [moment for chunk in chunks for moment in chunk.commit_times]
        assert times == sorted(times)


def test_rows_undone_by_a_savepoint_are_not_read(log: Logged) -> None:
    outbox = Outbox()
    with log.stream() as stream, log.connection.transaction():
        outbox.stash(log.connection, Message(topic="one"))
        with log.connection.transaction(force_rollback=True):
            outbox.stash(log.connection, Message(topic="undone"))
        with log.connection.transaction():
            outbox.stash(log.connection, Message(topic="two"))
    with log.stream() as stream:
        assert topics(read_rows(stream, 2)) == ["one", "two"]


def test_a_large_transaction_comes_in_parts(log: Logged) -> None:
    # Without this default COPY writes row by row.
    log.connection.execute("ALTER TABLE outbox ALTER COLUMN create_time SET DEFAULT now()")
    with log.connection.transaction():
        Outbox().stash_many(
            log.connection, [Message(topic="t", key=b"%d" % n, value=b"v" * 90) for n in range(100_000)]
        )
    with log.stream(most_rows=5_000) as stream:
        first = stream.read(1_000, 2**30, 60)
        assert first is not None
        assert 0 < len(first.rows) <= 1_000
        assert first.ended < first.positions[0].commit
        chunks = [first, *read_rows(stream, 100_000 - len(first.rows))]
        positions = [position for chunk in chunks for position in chunk.positions]
        # COPY's rows share positions in the WAL.
        assert len({position.change for position in positions}) < 10_000
        assert len(set(positions)) == 100_000
        assert positions == sorted(positions)
        assert [row[3] for chunk in chunks for row in chunk.rows] == [b"%d" % n for n in range(100_000)]
        if chunks[-1].ended < positions[-1].commit:
            chunks += read_until(stream, lambda chunk: chunk.ended > positions[-1].commit)
        assert chunks[-1].ended > positions[-1].commit
    # A second read gives the same positions.
    with log.stream() as stream:
        again = read_rows(stream, 30_000)
        assert [position for chunk in again for position in chunk.positions] == positions[
            : sum(len(c.rows) for c in again)
        ]


def test_the_slot_advances_only_when_it_is_confirmed(log: Logged) -> None:
    before = log.confirmed()
    log.stash("one", "two")
    with log.stream() as stream:
        ended = read_commits(stream, 2)
        # Long enough for several status updates.
        time.sleep(2.5)
        assert log.confirmed() == before
        stream.confirm(ended)
        eventually(lambda: log.confirmed() == ended, 30, lambda: f"{log.confirmed()} is not {ended}")
        stream.confirm(before)
        log.stash("three")
        assert topics(read_rows(stream, 1)) == ["three"]
        assert log.confirmed() == ended
    with log.stream() as stream:
        assert topics(read_rows(stream, 1)) == ["three"]


def test_the_last_confirmed_position_is_sent_at_the_end(log: Logged) -> None:
    log.stash("one")
    with log.stream() as stream:
        ended = read_commits(stream, 1)
        stream.confirm(ended)
    eventually(lambda: log.confirmed() == ended, 30, lambda: f"{log.confirmed()} is not {ended}")


def test_unconfirmed_rows_are_read_again(log: Logged) -> None:
    log.stash("one")
    log.stash("two")
    with log.stream() as stream:
        first = read_rows(stream, 2)
    with log.stream() as stream:
        again = read_rows(stream, 2)
    positions = [[position for chunk in chunks for position in chunk.positions] for chunks in (first, again)]
    assert positions[0] == positions[1]


def test_the_position_follows_an_idle_log(log: Logged) -> None:
    log.stash("one")
    with log.stream() as stream:
        read_rows(stream, 1)
        log.connection.execute("CREATE TABLE other AS SELECT generate_series(1, 1000) AS n")
        row = log.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        idle = read_until(stream, lambda chunk: (chunk.idle_at or 0) >= int(row[0]))[-1].idle_at
        assert idle is not None
        stream.confirm(idle)
        eventually(lambda: log.confirmed() == idle, 30, lambda: f"{log.confirmed()} is not {idle}")
        assert stream.server_position >= idle
        log.stash("two")
        assert topics(read_rows(stream, 1)) == ["two"]


def test_an_open_transaction_is_not_lost_by_an_idle_position(log: Logged, dsn: str) -> None:
    with psycopg.connect(dsn) as open_:
        with log.stream() as stream:
            Outbox().stash(open_, Message(topic="late"))
            log.connection.execute("CREATE TABLE other AS SELECT generate_series(1, 1000) AS n")
            idle = read_until(stream, lambda chunk: chunk.idle_at is not None)[-1].idle_at
            assert idle is not None
            stream.confirm(idle)
        open_.commit()
        with log.stream() as stream:
            assert topics(read_rows(stream, 1)) == ["late"]


def test_a_slot_has_one_reader_at_a_time(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.tail.stream._BUSY_SECONDS", 0.5)
    with log.stream(), pytest.raises(SlotBusy, match="is active for PID"), log.stream():
        pass


def test_a_slot_reader_that_is_ending_is_awaited(log: Logged) -> None:
    log.stash("one")
    with log.stream() as old:
        slot = log.slots.slot(log.slot)
        assert slot is not None
        end = "SELECT pg_terminate_backend(%s)"
        ending = threading.Timer(0.5, log.connection.execute, [end, [slot.active_pid]])
        ending.start()
        with log.stream() as new:
            assert topics(read_rows(new, 1)) == ["one"]
        ending.join()
        with pytest.raises(DatabaseLost):
            read_until(old, lambda chunk: chunk.ended < 0)


def test_a_missing_slot_is_refused(log: Logged) -> None:
    slot, log.slot = log.slot, "nowhere"
    with pytest.raises(SlotUnusable, match="'nowhere' cannot be read"), log.stream():
        pass
    log.slot = slot


def test_a_missing_replication_privilege_is_reported_with_the_statement(log: Logged, dsn: str) -> None:
    log.connection.execute("DROP ROLE IF EXISTS plain_reader")
    log.connection.execute("CREATE ROLE plain_reader LOGIN PASSWORD 'x'")
    plain = psycopg.conninfo.make_conninfo(dsn, user="plain_reader", password="x")
    try:
        with pytest.raises(DatabaseRefused, match="ALTER ROLE … REPLICATION"), log.stream(dsn=plain):
            pass
    finally:
        log.connection.execute("DROP ROLE plain_reader")


def test_a_dropped_column_ends_the_stream(log: Logged) -> None:
    with log.stream() as stream:
        log.stash("one")
        read_rows(stream, 1)
        log.connection.execute("ALTER TABLE outbox ADD COLUMN more text DEFAULT 'x'")
        log.stash("two")
        assert topics(read_rows(stream, 1)) == ["two"]
        log.connection.execute("ALTER TABLE outbox DROP COLUMN kafka_timestamp")
        log.connection.execute("INSERT INTO outbox (kafka_topic) VALUES ('three')")
        with pytest.raises(DatabaseRefused, match="no column kafka_timestamp"):
            read_until(stream, lambda chunk: bool(chunk.rows))


def test_a_connection_reports_system_identifier_and_timeline(log: Logged, dsn: str) -> None:
    connection = ReplicationConnection(dsn, "tail")
    found = connection.identify()
    assert connection.timeline_ends(1) == ()
    connection.close()
    row = log.connection.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert ((found.system_id,), found.timeline) == (row, 1)
    with log.stream() as stream:
        assert stream.identity.system_id == found.system_id


def test_a_slot_reports_how_much_log_it_keeps(log: Logged) -> None:
    require_readable(log.slots, log.slot, log.slot, log.source)
    before = retained_bytes(log.slots, log.slot)
    log.stash(*["t"] * 1000)
    after = retained_bytes(log.slots, log.slot)
    assert before is not None
    assert after is not None
    assert after > before + 50_000
    slot = log.slots.slot(log.slot)
    assert slot is not None
    assert (slot.plugin, slot.failover, slot.active_pid) == ("pgoutput", True, None)
    assert retained_bytes(log.slots, "nowhere") is None


def test_each_problem_is_reported_with_its_remedy(log: Logged) -> None:
    def problems(slot: str = log.slot, publication: str = log.slot) -> list[str]:
        return [str(each) for each in check_slot(log.slots, slot, publication, log.source).problems]

    assert problems() == []
    (missing,) = problems(slot="nowhere")
    assert "there is no slot 'nowhere'" in missing
    assert "SELECT pg_create_logical_replication_slot('nowhere', 'pgoutput', false, false, true)" in missing
    (missing,) = problems(publication="nowhere")
    assert """CREATE PUBLICATION "nowhere" FOR TABLE "public"."outbox" WITH (publish = 'insert')""" in missing
    log.connection.execute(f"ALTER PUBLICATION {log.slot} SET TABLE outbox WHERE (id > 5)")
    (filtered,) = problems()
    mend = filtered.split(". ")[-1]
    log.connection.execute(mend.encode())
    log.connection.execute(f"ALTER PUBLICATION {log.slot} SET (publish = 'update')")
    log.connection.execute(f"ALTER PUBLICATION {log.slot} DROP TABLE outbox")
    assert [problem.split(": ")[0] for problem in problems()] == [
        f'publication {log.slot!r} does not include "public"."outbox"',
        f"publication {log.slot!r} does not publish inserts",
    ]
    for problem in problems():
        log.connection.execute(problem.split(". ")[-1].encode())
    assert problems() == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """Start a server that tests may restart, and that soon ends a silent replication connection."""
    directory = Path(tmp_path_factory.mktemp("server"))
    for place in (directory, *directory.parents[:3]):
        if place.owner() == directory.owner() and "pytest" in str(place):
            place.chmod(0o711)
    made = Postgres(directory / "postgres", PostgresOptions(durable=False, settings=dict(_IMPATIENT)), sweep=False)
    made.prepare()
    made.start()
    yield made
    made.server.end()


def test_reports_go_on_while_nothing_is_read(server: Postgres) -> None:
    with logged(server.dsn()) as log:
        with log.connection.transaction():
            messages = [Message(topic="t", value=b"v" * 1000, key=b"%d" % n) for n in range(30_000)]
            Outbox().stash_many(log.connection, messages)
        with log.stream(most_rows=100) as stream:
            first = stream.read(10, 2**20, 30)
            assert first is not None
            # The server would have ended a silent connection after 2 s.
            time.sleep(5)
            assert stream.waiting_rows < 5_000
            chunks = [first, *read_rows(stream, 30_000 - len(first.rows))]
            assert sum(len(chunk.rows) for chunk in chunks) == 30_000


def test_a_server_that_restarts_ends_the_stream_and_loses_nothing(server: Postgres) -> None:
    with logged(server.dsn()) as log:
        log.stash("zero")
        with log.stream() as stream:
            ended = read_commits(stream, 1)
            stream.confirm(ended)
            eventually(lambda: log.confirmed() == ended, 30, lambda: f"{log.confirmed()} is not {ended}")
            log.stash("one")
            read_rows(stream, 1)
            log.connection.close()
            began = time.monotonic()
            # A regular shutdown waits until readers have received the WAL, and not until they have confirmed it.
            server.server.stop()
            assert time.monotonic() - began < 30
            with pytest.raises(DatabaseLost):
                read_until(stream, lambda chunk: bool(chunk.rows))
        server.start()
        log.connection = psycopg.connect(server.dsn(), autocommit=True)
        log.stash("two")
        with log.stream() as stream:
            assert topics(read_rows(stream, 2)) == ["one", "two"]
            server.server.kill()
            with pytest.raises(DatabaseLost):
                read_until(stream, lambda chunk: bool(chunk.rows))
        server.start()
        log.connection.close()
        log.connection = psycopg.connect(server.dsn(), autocommit=True)
        with log.stream() as stream:
            assert topics(read_rows(stream, 2)) == ["one", "two"]


def test_a_new_timeline_reports_where_the_last_one_ended(server: Postgres) -> None:
    before = ReplicationConnection(server.dsn(), "tail")
    old = before.identify()
    before.close()
    server.server.stop()
    # Recovery of the same data up to its end begins a new timeline, as after a restore.
    (server.data / "recovery.signal").touch(mode=0o644)
    server.options.settings["restore_command"] = "false"
    try:
        server.start()
    finally:
        del server.options.settings["restore_command"]
    after = ReplicationConnection(server.dsn(), "tail")

    def promoted() -> bool:
        return after.identify().timeline == old.timeline + 1

    eventually(promoted, 30, lambda: f"{after.identify()} follows {old}")
    ends = after.timeline_ends(old.timeline + 1)
    assert [end.timeline for end in ends] == list(range(1, old.timeline + 1))
    assert ends[-1].end >= old.position
    after.close()


def test_a_lost_slot_is_reported_with_its_position(server: Postgres) -> None:
    with logged(server.dsn()) as log:
        log.connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        log.connection.execute("SELECT pg_reload_conf()")
        try:
            for _ in range(4):
                log.stash(*["t"] * 1000)
                log.connection.execute("SELECT pg_switch_wal()")
                log.connection.execute("CHECKPOINT")
        finally:
            log.connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            log.connection.execute("SELECT pg_reload_conf()")
        slot = log.slots.slot(log.slot)
        assert slot is not None
        assert slot.lost
        (problem,) = check_slot(log.slots, log.slot, log.slot, log.source).problems
        assert "may be missing; rows that are still in the table can be inserted again" in str(problem)
        with pytest.raises(SlotUnusable), log.stream():
            pass


def test_headers_are_read_as_by_a_relay(log: Logged) -> None:
    with log.stream() as stream:
        log.connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_header_keys, kafka_header_values) VALUES "
            "('a', '{{x,y}}', '{{1,2}}'), ('b', '[5:6]={x,y}', '[0:1]={1,2}'), ('c', '{}', '{}')"
        )
        rows = [row for chunk in read_rows(stream, 3) for row in chunk.rows]
    assert [(row[2], row[5], row[6], row[9]) for row in rows] == [
        ("a", (), (), "headers"), ("b", ("x", "y"), (b"1", b"2"), None), ("c", (), (), None),
    ]  # fmt: skip


def test_a_tables_tail_is_sent_no_messages(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any login may write them, of up to a gigabyte each."""
    feed, received = LogReader.feed, list[int]()

    def feeding(reader: LogReader, frame: bytes) -> None:
        received.append(len(frame))
        feed(reader, frame)

    monkeypatch.setattr(LogReader, "feed", feeding)
    log.connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000000))")
    log.stash("one")
    with log.stream() as stream:
        assert topics(read_rows(stream, 1)) == ["one"]
    assert max(received) < 100_000
