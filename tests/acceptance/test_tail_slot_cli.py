"""`thresher tail slot`: the slot and the publication of a tail, from a shell."""

import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.in_process import thresher as in_process
from tests.tail.logged import OUTBOX
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
    assert 'key 2 added to "outbox_keys"' in key
    other = in_process(["tail", "slot", "key", "--outbox", "other", "--ds", dsn]).stdout.decode()
    assert 'function "other_emit" and its keys created' in other
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication_tables").fetchone() == (0,)
