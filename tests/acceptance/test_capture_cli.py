"""`thresher capture`: an operator's day with a capture, from a shell; and the example of its page."""

import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.capture.captured import PATIENCE_SECONDS, CapturedOrders
from tests.in_process import thresher as in_process
from tests.named_stack import named_stack
from tests.processes import environment, eventually
from tests.servers import configure
from tests.stranger import attack_program, password_of
from thresher.cli.capture.app import milliseconds_of
from thresher.devstack import ports
from thresher.devstack.stack import Stack

SERVERS = ("data_source", "kafka")


@pytest.fixture
def orders(stack: Stack, dsn: str) -> CapturedOrders:
    return CapturedOrders(stack.kafka.bootstrap, dsn)


@pytest.fixture
def file(orders: CapturedOrders, tmp_path: Path) -> str:
    path = tmp_path / "capture.yaml"
    path.write_text(yaml.safe_dump(orders.keys))
    return str(path)


def asked(*arguments: str, code: int = 0) -> str:
    done = in_process(["capture", *arguments])
    assert done.returncode == code, (done.stdout.decode(), done.stderr.decode())
    return (done.stdout if code == 0 or "--json" in arguments else done.stderr).decode()


def test_an_operators_day_with_a_capture(
    orders: CapturedOrders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `--stack` names both servers; the file names none.
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump({name: each for name, each in orders.keys.items() if name not in SERVERS}))
    file = (str(path), "--stack", "shop")
    monkeypatch.setenv("THRESHER_STATE", str(tmp_path))
    with named_stack(tmp_path, "shop", dsn=orders.dsn, bootstrap=orders.eyes["bootstrap.servers"]):
        _operate(orders, file)


def _operate(orders: CapturedOrders, file: tuple[str, ...]) -> None:
    at = f"127.0.0.1:{ports.free_port()}"
    command = [sys.executable, "-m", "thresher", "capture", "run", "-c", *file, "--status", at, "--election", "lease"]
    orders.publish(("a", 1), ("bad", b"{"), ("low", b'{"note": "x"}'))
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            eventually(lambda: orders.rows() == {"a": 1} and len(orders.dead()) == 2, 2 * PATIENCE_SECONDS)
            eventually(lambda: status_at(at)["topics"][orders.topic]["dead"] == 2, PATIENCE_SECONDS)
            # Java's gateway, Spark's two, and the page.
            attack_program(
                process.pid, ports=4, secrets=[password_of(orders.dsn)], meanwhile=lambda: status_at(at)["state"]
            )
            shown = in_process(["status", "--at", at]).stdout.decode()
            assert "capture shop: running" in shown
            assert orders.topic in shown
            example = python_example().replace('"orders"', repr(orders.topic))
            exec(example, {"bootstrap": orders.eyes["bootstrap.servers"], "dsn": orders.dsn})  # noqa: S102
            assert orders.rows() == {"a": 1, "o1": 5}, "the example has waited"
            with psycopg.connect(orders.dsn) as connection:
                connection.execute("DELETE FROM orders WHERE id = 'a'")
            assert json.loads(asked("rewind", "-c", *file, "--to", "earliest", "--json"))["keys"] == 2
            assert orders.rows() == {"a": 1, "o1": 5}
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert out.decode() == "stopped; 4 records captured\n"
    listed = asked("dead", "list", "-c", *file)
    assert (orders.topic in listed, "│ bad " in listed, "b'bad'" in listed) == (True, True, False)
    records: dict[str, Any] = {
        each["key"]: each for each in json.loads(asked("dead", "list", "-c", *file, "--json"))["records"]
    }
    assert {key: each["kind"] for key, each in records.items()} == {"bad": "malformed", "low": "constraint"}
    assert json.loads(asked("dead", "show", str(records["bad"]["id"]), "-c", *file))["value"] == "{"
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders ALTER COLUMN total SET DEFAULT 0")
        connection.execute("ALTER TABLE orders ALTER COLUMN total DROP NOT NULL")
    low, bad = (str(records[key]["id"]) for key in ("low", "bad"))
    assert asked("dead", "retry", low, "-c", *file) == f"{low}: applied\n"
    assert "no such records: 99" in asked("dead", "drop", bad, "99", "-c", *file, code=2)
    assert asked("dead", "drop", bad, "-c", *file) == "1 record was dropped\n"
    assert asked("step-over", "-c", *file, "--yes") == "0 batches were stepped over\n"
    assert json.loads(asked("step-over", "-c", *file, "--yes", "--json")) == {"batches": []}
    assert asked("adopt", "-c", *file) == "every stored offset is in its log: nothing was changed\n"


def test_a_check_advises_on_topics_of_others(orders: CapturedOrders, file: str) -> None:
    limits = {"max.message.bytes": "5000000", "retention.ms": "3600000", "unclean.leader.election.enable": "true"}
    found = json.loads(asked("schema", "check", "-c", file, "--json"))
    assert [each["setting"] for each in found["advice"]] == ["compression.type"]
    configure(orders.admin, orders.topic, **limits)
    found = json.loads(asked("schema", "check", "-c", file, "--json"))
    assert found["usable"]
    assert [each["mend"] for each in found["advice"]] == [
        "max.message.bytes=1048588",
        "",
        "unclean.leader.election.enable=false",
        "retention.ms=259200000",
    ]
    told = in_process(["capture", "schema", "check", "-c", file])
    assert b"advice: " in told.stderr
    assert b"5.0 GB in each reader" in told.stderr
    path = Path(file)
    path.write_text(path.read_text().replace(orders.eyes["bootstrap.servers"], f"127.0.0.1:{ports.free_port()}"))
    unreached = json.loads(asked("schema", "check", "-c", file, "--json"))
    assert (unreached["usable"], unreached["advice"]) == (True, None)
    assert "the topics were not looked at" in unreached["unknown"]


def test_the_tables_are_printed_created_and_checked(orders: CapturedOrders, file: str) -> None:
    assert asked("schema", "check", "-c", file) == "the database is ready for this capture\n"
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders DROP COLUMN thresher_timestamp")
        connection.execute("DROP TABLE thresher_capture_dead")
    findings = json.loads(asked("schema", "check", "-c", file, "--json", code=1))["findings"]
    assert len(findings) == 2
    assert asked("schema", "create", "-c", file) == "the tables exist\n"
    assert asked("schema", "check", "-c", file) == "the database is ready for this capture\n"
    ddl = asked("schema", "print", "-c", file)
    assert 'ALTER TABLE "orders"' in ddl
    with psycopg.connect(orders.dsn) as connection:
        connection.execute(ddl.encode())
        connection.execute("DROP TABLE orders")
    assert "there is no such table" in asked("schema", "create", "-c", file, code=1)


@pytest.mark.parametrize(
    ("to", "why"), [("never", "is neither 'earliest' nor a time"), ("2026-01-01", "has no time zone")]
)
def test_a_malformed_time_is_refused(file: str, to: str, why: str) -> None:
    assert why in asked("rewind", "-c", file, "--to", to, code=2)


@pytest.mark.parametrize("to", ["0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59.999Z"])
def test_a_time_before_all_records_means_all(orders: CapturedOrders, file: str, to: str) -> None:
    assert f"{orders.topic} was never captured" in asked("rewind", "-c", file, "--to", to, code=4)
    assert milliseconds_of(to) == 0


def test_a_capture_that_cannot_work_says_why(orders: CapturedOrders, file: str) -> None:
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DROP TABLE orders")
    assert 'CREATE TABLE "public"."orders"' in asked("run", "-c", file, code=4)


@pytest.fixture
def role(orders: CapturedOrders, file: str) -> Iterator[str]:
    """Yield a role without rights, with which the file connects from now on."""
    name = f"operator_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(orders.dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'right'".encode())
        dsn = psycopg.conninfo.make_conninfo(orders.dsn, user=name, password="right")
        Path(file).write_text(yaml.safe_dump({**orders.keys, "data_source": dsn}))
        yield name
        owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize("command", [("dead", "list"), ("schema", "check")])
def test_a_role_without_rights_is_told_what_its_owner_runs(
    orders: CapturedOrders, file: str, role: str, command: tuple[str, ...]
) -> None:
    with psycopg.connect(orders.dsn) as owner:
        owner.execute("CREATE SCHEMA cap")
    keys = yaml.safe_load(Path(file).read_text())
    Path(file).write_text(yaml.safe_dump({**keys, "schema": "cap"}))
    told = asked(*command, "-c", file, code=4)
    assert "'thresher capture schema print -c FILE --role ROLE' prints the grants" in told


def test_the_captures_own_role_runs_its_operators_commands(orders: CapturedOrders, file: str, role: str) -> None:
    orders.publish(("a", 1))
    with psycopg.connect(orders.dsn) as owner:
        owner.execute(asked("schema", "print", "-c", file, "--role", role).encode())
    assert "it was never captured" in asked("adopt", "-c", file)
    assert asked("step-over", "-c", file, "--yes") == "0 batches were stepped over\n"
    assert asked("rewind", "-c", file, "--to", "earliest")
    assert json.loads(asked("dead", "list", "-c", file, "--json"))["records"] == []


def status_at(at: str) -> Any:
    return json.loads(in_process(["status", "--at", at, "--json"]).stdout)


def python_example() -> str:
    page = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
    return next(str(each) for each in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "_wait(" in each)
