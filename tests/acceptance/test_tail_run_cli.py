"""`thresher tail run`, `join` and `leave`: an operator's day with a tail, from a shell."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.in_process import thresher
from tests.processes import environment, eventually
from tests.relay.databases import own_postgres
from tests.stranger import attack_program, password_of
from tests.tail.tailing import TailPlace
from thresher.db.names import TableName
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.outbox import Message, create_schema

PATIENCE_SECONDS = 120.0


@pytest.fixture
def at(stack: Stack, dsn: str, topic_prefix: str) -> Iterator[TailPlace]:
    made = TailPlace(stack, dsn, topic_prefix)
    yield made
    made.drop_slot()


@pytest.fixture
def file(at: TailPlace, tmp_path: Path) -> Path:
    settings = at.settings()
    path = tmp_path / "tail.yaml"
    keys = {"name": settings.name, "data_source": at.dsn, "slot": at.slot, "kafka": dict(settings.kafka)}
    path.write_text(yaml.safe_dump({**keys, "election": "none"}))
    return path


def test_an_operators_day_with_a_tail(at: TailPlace, file: Path) -> None:
    address = f"127.0.0.1:{ports.free_port()}"
    command = [sys.executable, "-m", "thresher", "tail", "run", "-c", str(file), "--status", address]
    at.stash(Message(topic=at.topic, key="k", value="1"), Message(topic=f"{at.prefix}gone", key="k", value="2"))
    with subprocess.Popen(
        [*command, "--grace-seconds", "0.2"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            at.read(1, seconds=PATIENCE_SECONDS)

            def page(name: str) -> str:
                with urllib.request.urlopen(f"http://{address}/{name}") as answer:
                    return str(answer.read().decode())

            eventually(lambda: json.loads(page("status"))["dead_rows"] == 1, PATIENCE_SECONDS)
            status = json.loads(page("status"))
            assert status["slot"] == at.slot
            # Java's gateway, Spark's two, and the page.
            attack_program(process.pid, ports=4, secrets=[password_of(at.dsn)], meanwhile=lambda: page("status"))
            at.stash(Message(topic=at.topic, key="k", value="3"))
            at.read(2, seconds=PATIENCE_SECONDS)
            assert status["retained_bytes"] >= 0
            told = thresher(("status", "--at", address))
            assert (told.returncode, f"by the slot {at.slot}: running".encode() in told.stdout) == (0, True), told
            metrics = page("metrics")
            assert "thresher_tail_retained_bytes{" in metrics
            # A shard tells its figures about once a second.
            lag = re.compile(r'^thresher_tail_lag_seconds{[^}]*shard="0"[^}]*} [0-9.e+-]+$', re.MULTILINE)
            eventually(lambda: lag.search(page("metrics")) is not None, PATIENCE_SECONDS, lambda: page("metrics"))
            refused = thresher(("tail", "leave", "-c", str(file)))
            assert (refused.returncode, b"still runs" in refused.stderr) == (4, True)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert b"2 rows published" in out + err
    left = thresher(("tail", "leave", "-c", str(file)))
    assert left.returncode == 0, left.stderr
    assert at.found_slot() is None
    at.create_slot()
    joined = thresher(("tail", "join", "-c", str(file)))
    assert joined.returncode == 0, joined.stderr
    assert b"start the tail" in joined.stdout


def test_a_tail_without_a_slot_says_what_to_do(at: TailPlace, file: Path) -> None:
    at.drop_slot()
    answer = thresher(("tail", "run", "-c", str(file), "--status", "off"))
    assert answer.returncode == 4
    assert b"thresher tail slot create" in answer.stderr


def test_errors_about_server_and_role_name_the_statements_to_run(file: Path) -> None:
    with own_postgres(wal_level="replica") as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            create_schema(connection, TableName(table="outbox"))
            connection.execute("CREATE ROLE plain LOGIN PASSWORD 'x'")
            connection.execute("GRANT ALL ON SCHEMA public TO plain")
            connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
        plain = psycopg.conninfo.make_conninfo(server.dsn(), user="plain", password="x")
        answer = thresher(("tail", "run", "-c", str(file), "--ds", plain, "--status", "off"))
    told = " ".join(answer.stderr.decode().split())
    assert answer.returncode == 4, told
    assert "ALTER SYSTEM SET wal_level = 'logical'" in told
    assert 'ALTER ROLE "plain" REPLICATION' in told
    assert "CREATE PUBLICATION" in told


def test_joining_with_wrong_options_changes_nothing(at: TailPlace, file: Path) -> None:
    answer = thresher(("tail", "join", "-c", str(file), "--settle", "foo"))
    assert (answer.returncode, b"Traceback" in answer.stderr) == (2, False)
    answer = thresher(("tail", "join", "-c", str(file), "--via", "log"))
    assert answer.returncode == 4, answer.stderr
    assert at.sql("SELECT to_regclass('thresher_relay')") == [(None,)]


def test_a_tail_with_two_shards_is_refused(file: Path) -> None:
    answer = thresher(("tail", "run", "-c", str(file), "--shards", "2"))
    assert answer.returncode == 2
    assert b"a slot has one reader" in answer.stderr
