"""`thresher tail slot`: the slot and the publication of a tail, from a shell."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.in_process import thresher as in_process
from tests.tail.logged import OUTBOX
from thresher.db import TableName, statement
from thresher.outbox import create_schema

SLOT = f"cli_{os.getpid()}"


@pytest.fixture
def asked(dsn: str) -> Iterator[Any]:
    def ask(*arguments: str, code: int = 0) -> str:
        done = in_process(["tail", "slot", *arguments, "--slot", SLOT, "--ds", dsn])
        assert done.returncode == code, done.stderr.decode()
        return (done.stdout if code == 0 else done.stderr).decode()

    yield ask
    with psycopg.connect(dsn, autocommit=True) as connection:
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        connection.execute(drop, [SLOT])


def test_an_operators_day_with_a_slot(dsn: str, asked: Any) -> None:
    assert "there is no table" in asked("create", code=4)
    with psycopg.connect(dsn) as connection:
        create_schema(connection, OUTBOX)
    missing = asked("check", code=4)
    assert f'CREATE PUBLICATION "{SLOT}" FOR TABLE "public"."outbox"' in missing
    assert f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, false, true)" in missing
    made = asked("create")
    assert f"publication {SLOT} created\n" in made
    assert f"slot {SLOT} created at 0/" in made
    assert "kept on standbys" in made
    assert "already exists" in asked("create", code=4)
    assert f"slot {SLOT} can be read from 0/" in asked("check")
    found = json.loads(asked("check", "--json"))
    assert (found["readable"], found["active"], found["failover"], found["problems"]) == (True, False, True, [])
    assert found["retained_bytes"] >= 0
    assert "nobody reads the slot" in found["warnings"][0]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"ALTER PUBLICATION {SLOT} DROP TABLE outbox")
    (problem,) = json.loads(in_process(["tail", "slot", "check", "--slot", SLOT, "--ds", dsn, "--json"]).stdout)[
        "problems"
    ]
    assert problem["mend"] == f'ALTER PUBLICATION "{SLOT}" ADD TABLE "public"."outbox"'
    assert asked("drop", "--with-publication", SLOT) == f"slot {SLOT} dropped\n"
    assert "does not exist" in asked("drop", code=4)


def test_an_outbox_without_a_table_needs_an_empty_publication(dsn: str, asked: Any) -> None:
    done = in_process(["tail", "slot", "create", "--via", "log", "--slot", SLOT, "--ds", dsn])
    assert f"slot {SLOT} created" in done.stdout.decode()
    said = " ".join(done.stderr.decode().split())
    assert 'GRANT EXECUTE ON FUNCTION "public"."outbox_emit"(bytea) TO …' in said
    assert 'GRANT SELECT ON "public"."outbox_keys" TO …' in said
    assert "every role may write messages to the WAL" in said
    assert json.loads(asked("check", "--via", "log", "--json", "--accept-public-emit"))["readable"]
    found = json.loads(
        in_process(["tail", "slot", "check", "--via", "log", "--slot", SLOT, "--ds", dsn, "--json"]).stdout
    )
    with psycopg.connect(dsn) as connection:
        connection.execute(found["problems"][0]["mend"].encode())
    assert json.loads(asked("check", "--via", "log", "--json"))["readable"]
    key = in_process(["tail", "slot", "key", "--ds", dsn]).stdout.decode()
    assert 'key 2 added to "public"."outbox_keys"' in key
    other = in_process(["tail", "slot", "key", "--outbox", "other", "--ds", dsn]).stdout.decode()
    assert 'function "public"."other_emit" and its keys "public"."other_keys" created' in other
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication_tables").fetchone() == (0,)


def test_keys_are_not_made_in_another_schema_by_mistake(dsn: str) -> None:
    def key(*arguments: str) -> tuple[int, str]:
        done = in_process(["tail", "slot", "key", "--outbox", "orders", *arguments, "--ds", dsn])
        return done.returncode, done.stdout.decode() + done.stderr.decode()

    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute(statement("outbox_dead_create", TableName(table="orders", schema="shop")))
    code, said = key()
    assert (code, "--schema shop" in " ".join(said.split())) == (2, True), said
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT to_regclass('public.orders_keys')").fetchone() == (None,)
    assert '"shop"."orders_emit"' in key("--schema", "shop")[1]
    assert '"public"."orders_emit"' in key("--schema", "public")[1]
    assert 'key 2 added to "public"."orders_keys"' in key()[1]


def test_separate_roles_create_a_slot_as_the_docs_say(dsn: str) -> None:
    """The owner makes function, keys and publication; the tail's role, which owns nothing, makes the slot."""
    owner, tail = (f"slot_{name}_{os.getpid()}" for name in ("owner", "tail"))

    def slot(role: str, what: str, *arguments: str) -> tuple[int, str]:
        named = [
            "--outbox",
            "orders",
            "--schema",
            "shop",
            "--ds",
            psycopg.conninfo.make_conninfo(dsn, user=role, password="x"),
        ]
        done = in_process(["tail", "slot", what, *arguments, *named])
        return done.returncode, " ".join((done.stdout + done.stderr).decode().split())

    def refused() -> None:
        code, said = slot(tail, "create", "--via", "log", "--slot", SLOT)
        assert (code, "Separate roles" in said, "schema print" in said) == (4, True, False), said

    with psycopg.connect(dsn, autocommit=True) as admin, ExitStack() as ended:
        run = admin.execute
        for role in (owner, tail):
            run(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
            ended.callback(run, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())
        ended.callback(
            run, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
        )
        database = psycopg.sql.Identifier(admin.info.dbname).as_string()
        run(f"CREATE SCHEMA shop; GRANT USAGE, CREATE ON SCHEMA shop TO {owner}".encode())
        run(f"GRANT CREATE ON DATABASE {database} TO {owner}; GRANT USAGE ON SCHEMA shop TO {tail}".encode())
        run(f"ALTER ROLE {tail} REPLICATION".encode())
        refused()
        assert 'function "shop"."orders_emit" and its keys "shop"."orders_keys" created' in slot(owner, "key")[1]
        used = "pg_logical_emit_message(boolean, text, bytea, boolean)"
        both = f"{used}, {used.replace('bytea', 'text')}"
        run(f"REVOKE EXECUTE ON FUNCTION {both} FROM PUBLIC".encode())
        run(f"GRANT EXECUTE ON FUNCTION {used} TO {owner}".encode())
        run(f"GRANT SELECT ON shop.orders_keys TO {tail}".encode())
        refused()
        with psycopg.connect(dsn, user=owner, password="x", autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {SLOT} WITH (publish = 'insert')".encode())
        assert f"slot {SLOT} created" in slot(tail, "create", "--via", "log", "--slot", SLOT)[1]
        assert slot(tail, "check", "--via", "log", "--slot", SLOT)[0] == 0
