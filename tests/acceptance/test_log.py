"""The log of a relay whose broker is unreachable: readable, and JSON to the last line."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from tests.processes import environment, eventually
from thresher.db import TableName
from thresher.devstack.ports import free_port
from thresher.devstack.stack import Stack
from thresher.outbox import create_schema

# Only how long a failing test waits. Seen: 20 s until the log reports a broker that does not answer.
PATIENCE_SECONDS = 120.0


def test_an_unreachable_broker_is_logged_once_and_as_json(stack: Stack, dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as connection:
        create_schema(connection, TableName(table="outbox"))
    config: dict[str, Any] = {
        "name": "relay", "data_source": dsn, "status": "off", "log_format": "json", "election": "none",
        "kafka": {"bootstrap.servers": f"127.0.0.1:{free_port()}"},
    }  # fmt: skip
    path, log = tmp_path / "relay.yaml", tmp_path / "log"
    path.write_text(json.dumps(config))
    with log.open("wb") as written:
        command = [sys.executable, "-m", "thresher", "run", "-c", str(path)]
        relay = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=written, stderr=written)
    try:
        eventually(lambda: "waits to take over" in log.read_text(), PATIENCE_SECONDS, log.read_text)
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(PATIENCE_SECONDS) == 0, log.read_text()
    finally:
        relay.kill()
        relay.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    # The probe and the take-over each report it once, with the remedy; the Kafka client logs nothing.
    warnings = [line for line in lines if line["level"] in {"warning", "error", "critical"}]
    assert len(warnings) == len({line["logger"] for line in warnings}) <= 2
    for warning in warnings:
        told = "Connection refused; see that the broker runs, and that bootstrap.servers names it"
        assert told in warning["message"]
    assert "rows relayed" in lines[-1]["message"]
