"""Relays that share topics by locks, from a shell: two `thresher run`, `thresher topics`, the documented program."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.in_process import thresher as in_process
from tests.processes import ROOT, environment, eventually
from tests.relay.relaying import read_committed
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Message, Outbox

Ask = Callable[..., str]


@pytest.fixture
def file(stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path) -> Path:
    path = tmp_path / "relay.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": f"{topic_prefix}relay",
                "data_source": dsn,
                "kafka": {"bootstrap.servers": stack.kafka.bootstrap},
                "coordination": "topic-lock",
                "rest_seconds": 0.1,
                "shards": 1,
                "status": "off",
            }
        )
    )
    return path


@pytest.fixture
def ask() -> Ask:
    def asked(*arguments: str, code: int = 0) -> str:
        done = in_process(list(arguments))
        assert done.returncode == code, (done.stdout, done.stderr)
        return (done.stdout if code == 0 else done.stderr).decode()

    return asked


def stash(dsn: str, *messages: Message) -> None:
    with psycopg.connect(dsn) as connection:
        Outbox().stash_many(connection, messages)


def pending(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM outbox").fetchone()
    return row[0] if row else 0


@pytest.mark.timeout(300)
def test_an_operators_day_with_topic_locks(
    stack: Stack, dsn: str, topic_prefix: str, file: Path, ask: Ask, tmp_path: Path
) -> None:
    topics = [f"{topic_prefix}{name}" for name in ("orders", "users")]
    for topic in topics:
        Admin(stack.kafka.bootstrap).create_topic(topic, partitions=2)
    ask("schema", "create", "--ds", dsn)
    assert "CREATE INDEX" in ask("run", "-c", str(file), code=4)
    ask("schema", "create", "--ds", dsn, "--topic-lock")
    ask("schema", "create", "--ds", dsn, "--topic-lock")
    assert "CREATE TABLE" in ask("schema", "print", "--topic-lock")
    stash(dsn, *(Message(topic=topics[n % 2], key=f"k{n % 5}", value=str(n)) for n in range(200)))
    listed = {each["topic"]: each for each in json.loads(ask("topics", "list", "-c", str(file), "--json"))["topics"]}
    assert {topic: each["pending"] for topic, each in listed.items()} == dict.fromkeys(topics, 100)

    def said() -> str:
        return (tmp_path / "log").read_text()[-3000:]

    command = [sys.executable, "-m", "thresher", "run", "-c", str(file)]
    with (tmp_path / "log").open("wb") as log:
        relays = [subprocess.Popen(command, env=environment(), stdout=log, stderr=log) for _ in range(2)]
        try:
            eventually(lambda: pending(dsn) == 0, 120, said)
            # The command applies to all relays while they run.
            changed = ask("topics", "split", topics[0], "2", "-c", str(file))
            assert changed == f"topic {topics[0]} is locked in 2 parts, and was in 1\n"
            stash(dsn, Message(topic=topics[0], key="k", value="200"))
            codes = [relay.wait(120) for relay in relays]
        finally:
            for relay in relays:
                relay.send_signal(signal.SIGKILL)
                relay.wait()
    assert codes == [4, 4], said()
    assert f"thresher topics split {topics[0]} 1" in said()
    assert "cannot be a topic's name" in ask("topics", "split", "not a topic", "2", "-c", str(file), code=2)
    assert topics[0] in ask("topics", "list", "-c", str(file))
    found = read_committed(stack.kafka.bootstrap, topics, 200)
    assert sorted(int(record.value() or b"") for record in found) == list(range(200))


def test_a_relay_with_a_leader_has_no_locks_to_show(file: Path, ask: Ask) -> None:
    settings = {**yaml.safe_load(file.read_text()), "coordination": "leader"}
    del settings["rest_seconds"]
    file.write_text(yaml.safe_dump(settings))
    assert "has a leader" in ask("topics", "list", "-c", str(file), code=2)


def test_the_documented_program_runs(stack: Stack, dsn: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("schema", "create", "--ds", dsn, "--topic-lock")
    monkeypatch.setenv("THRESHER_DS", dsn)
    monkeypatch.setenv("THRESHER_BOOTSTRAP", stack.kafka.bootstrap)
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "topic-locks.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, "docs/topic-locks.md", "exec"), names)  # noqa: S102 - our own page
    assert not names["backend"].running
    assert names["backend"].error is None
