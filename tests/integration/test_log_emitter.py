"""Only an outbox's own function puts messages into the WAL that a tail publishes, and only writers may execute it."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.tail.logged import Logged, logged, read_rows, topics
from thresher.db.names import TableName
from thresher.outbox import Message, Outbox
from thresher.outbox.log_message import encode
from thresher.tail.log_source import LogSource
from thresher.tail.slot import LogUnreadable, emitter_problems, require_readable

_NUMBERS = itertools.count(1)
FORGED = encode(("forged", b"k", b"v", (), (), None, None))
PUBLIC = "pg_logical_emit_message(boolean, text, bytea, boolean), pg_logical_emit_message(boolean, text, text, boolean)"


@pytest.fixture
def log(dsn: str) -> Iterator[Logged]:
    with logged(dsn, via="log") as made:
        yield made


@contextmanager
def role(log: Logged, *grants: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a session of a new role with these rights."""
    name = f"emitter_{os.getpid()}_{next(_NUMBERS)}"
    run = log.connection.execute
    run(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
    try:
        for grant in grants:
            run(f"GRANT {grant} TO {name}".encode())
        dsn = psycopg.conninfo.make_conninfo(log.dsn, user=name, password="x")
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection
    finally:
        run(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


WRITES = "EXECUTE ON FUNCTION outbox_emit(bytea)"


def stash(connection: psycopg.Connection[Any], log: Logged, *named: str) -> None:
    with connection.transaction():
        Outbox(via="log", slot=log.slot).stash_many(connection, [Message(topic=topic) for topic in named])


def messages(log: Logged) -> list[bytes]:
    """Return the messages in the WAL, as a role may see them that reads it."""
    found = log.connection.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
        "'publication_names', %s, 'messages', 'true')",
        [log.slot, log.slot],
    ).fetchall()
    return [data[data.index(b"thresher:outbox\0") + 20 :] for (data,) in found if data[:1] == b"M"]


def test_a_writer_needs_one_right_and_other_roles_have_none(log: Logged) -> None:
    with role(log, WRITES) as writer, role(log) as stranger:
        stash(writer, log, "one")
        stash(writer, log, "two", "three")
        for attempt in (
            "SELECT outbox_emit('x')",
            "SELECT inner_pad FROM outbox_keys",
            "INSERT INTO outbox_keys (inner_pad, outer_pad) VALUES ('', '')",
            "SELECT pg_logical_emit_message(true, 'thresher:outbox', 'x'::bytea)",
            "SELECT pg_logical_emit_message(true, 'thresher:outbox', 'x'::text)",
            "ALTER FUNCTION outbox_emit(bytea) SECURITY INVOKER",
            "CREATE OR REPLACE FUNCTION outbox_emit(content bytea) RETURNS pg_lsn LANGUAGE sql AS 'SELECT NULL'",
        ):
            for connection in (stranger, writer):
                if connection is writer and attempt.startswith("SELECT outbox_emit"):
                    continue
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(attempt.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            stash(stranger, log, "never")
        assert "thresher tail slot create --via log" in str(caught.value.__notes__)
    with log.stream() as stream:
        assert topics(read_rows(stream, 3)) == ["one", "two", "three"]
        assert stream.refused == (0, None)


def test_forged_and_copied_messages_are_never_read(log: Logged) -> None:
    with role(log, WRITES) as writer:
        # The role may execute the server's functions, as every role may where that is not revoked.
        log.connection.execute(f"GRANT EXECUTE ON FUNCTION {PUBLIC} TO {writer.info.user}".encode())
        emit = "SELECT pg_logical_emit_message(true, 'thresher:outbox', %b)"
        stash(writer, log, "one")
        (copied,) = messages(log)
        writer.execute(emit, [FORGED])
        writer.execute(emit, [copied])
        with writer.transaction():
            Outbox(via="log", slot=log.slot).stash(writer, Message(topic="two"))
            writer.execute(emit, [copied])
        stash(writer, log, "three")
    with log.stream() as stream:
        assert topics(read_rows(stream, 3)) == ["one", "two", "three"]
        count, last = stream.refused
        assert (count, str(last and last.why)) == (3, "its seal does not fit")


def test_names_that_the_caller_plants_are_not_used(log: Logged) -> None:
    """A session may have temporary tables, and functions and operators of its own before the server's."""
    with role(
        log, WRITES, "CREATE, TEMPORARY ON DATABASE " + sql.Identifier(log.connection.info.dbname).as_string()
    ) as writer:
        # Not "$user": inside of the function, that is its owner.
        mine = writer.info.user
        writer.execute(f"CREATE SCHEMA {mine}; SET search_path = {mine}, pg_temp, pg_catalog, public".encode())
        writer.execute(
            "CREATE FUNCTION sha256(bytea) RETURNS bytea LANGUAGE sql AS $$SELECT 'planted'::bytea$$;"
            "CREATE FUNCTION int4send(integer) RETURNS bytea LANGUAGE sql AS $$SELECT 'planted'::bytea$$;"
            "CREATE FUNCTION planted(bytea, bytea) RETURNS bytea LANGUAGE sql AS $$SELECT $1$$;"
            "CREATE OPERATOR || (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = planted);"
            "CREATE TEMPORARY TABLE outbox_keys AS SELECT 9 AS id, ''::bytea AS inner_pad, ''::bytea AS outer_pad"
        )
        writer.execute("SET standard_conforming_strings = off")
        stash(writer, log, "one")
    with log.stream() as stream:
        assert topics(read_rows(stream, 1)) == ["one"]


def test_a_key_is_changed_without_losing_a_message(log: Logged) -> None:
    emitter = log.slots.emitter(TableName(table="outbox"))
    log.stash("one", via="log", slot=log.slot)
    assert emitter.new_key() == 2
    log.stash("two", via="log", slot=log.slot)
    with log.stream() as stream:
        assert topics(read_rows(stream, 2)) == ["one", "two"]
        assert emitter.new_key() == 3
        log.stash("three", via="log", slot=log.slot)
        assert topics(read_rows(stream, 1)) == ["three"]
        log.connection.execute("DELETE FROM outbox_keys WHERE id < 3")
        log.stash("four", via="log", slot=log.slot)
        assert topics(read_rows(stream, 1)) == ["four"]
    with log.stream() as stream:
        assert topics(read_rows(stream, 2)) == ["three", "four"]
        assert stream.refused[0] == 2


def test_keys_that_were_made_anew_lose_no_message(log: Logged) -> None:
    with log.stream() as stream:
        log.stash("one", via="log", slot=log.slot)
        assert topics(read_rows(stream, 1)) == ["one"]
        log.connection.execute("TRUNCATE outbox_keys RESTART IDENTITY")
        assert log.slots.emitter(TableName(table="outbox")).new_key() == 1
        log.stash("two", via="log", slot=log.slot)
        assert topics(read_rows(stream, 1)) == ["two"]
        assert stream.refused[0] == 0


def test_a_message_larger_than_the_bound_is_refused(log: Logged) -> None:
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="67108864 are allowed"):
        log.connection.execute("SELECT outbox_emit(convert_to(repeat('x', 67108865), 'UTF8'))")


def test_a_tail_says_who_else_may_write_to_the_wal(log: Logged) -> None:
    outbox = TableName(table="outbox")
    source = LogSource(outbox=outbox)
    require_readable(log.slots, log.slot, log.slot, source)
    run = log.connection.execute
    run(f"GRANT EXECUTE ON FUNCTION {PUBLIC} TO PUBLIC".encode())
    with pytest.raises(LogUnreadable, match="accept_public_emit"):
        require_readable(log.slots, log.slot, log.slot, source)
    require_readable(log.slots, log.slot, log.slot, LogSource(outbox=outbox, accept_public_emit=True))
    with role(log) as owner:
        name = owner.info.user
        run(
            f"GRANT CREATE ON SCHEMA public TO {name}; ALTER TABLE outbox_keys OWNER TO {name};"
            f"ALTER FUNCTION outbox_emit(bytea) OWNER TO {name}; ALTER FUNCTION outbox_emit(bytea) SECURITY INVOKER;"
            "GRANT EXECUTE ON FUNCTION outbox_emit(bytea) TO PUBLIC; GRANT SELECT ON outbox_keys TO PUBLIC;"
            f"REVOKE EXECUTE ON FUNCTION {PUBLIC} FROM PUBLIC".encode()
        )
        problems = emitter_problems(log.slots.emitter(outbox).read(), source)
        assert [problem.detail.partition(",")[0][:41] for problem in problems] == [
            '"outbox_emit"(bytea) runs with its caller',
            name,
            'every role may execute "outbox_emit"(byte',
            'every role may read "outbox_keys"',
        ]
        assert " ".join(problems[1].mend.split()).count("pg_logical_emit_message") == 1
        for problem in problems:
            run(problem.mend.encode())
        require_readable(log.slots, log.slot, log.slot, source)
        log.stash("one", via="log", slot=log.slot)
        with log.stream() as stream:
            assert topics(read_rows(stream, 1)) == ["one"]
