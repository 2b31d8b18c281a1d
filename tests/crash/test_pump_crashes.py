"""A pump that is killed leaves no writer process behind, and a history without false claims."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.processes import alive, descendants, environment, eventually
from thresher.db import TableName
from thresher.outbox import create_schema
from thresher.testing.history import Outcome, read_history

IDS = "SELECT convert_from(kafka_header_values[1], 'UTF8') FROM outbox"


@pytest.mark.parametrize("victim", ["pump", "writers"])
def test_after_kill_9_the_history_still_tells_the_truth(
    dsn: str, connection: psycopg.Connection[Any], tmp_path: Path, victim: str
) -> None:
    create_schema(connection, TableName(table="outbox"))
    connection.commit()
    history = tmp_path / "history.jsonl"
    command = [sys.executable, "-m", "thresher", "pump", "--records", "10000000", "--keys", "100"]
    command += ["--writers", "3", "--rollback", "0.2", "--transaction", "5", "--history", str(history)]
    with subprocess.Popen(command, env=environment(THRESHER_DS=dsn), stderr=subprocess.PIPE, text=True) as pump:
        eventually(lambda: history.exists() and history.stat().st_size > 200_000, 90)
        everybody = descendants(pump.pid) | {pump.pid}
        if victim == "pump":
            pump.kill()
        else:
            for writer in descendants(pump.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(writer, signal.SIGKILL)
        _, errors = pump.communicate(timeout=90)
    assert pump.returncode == (-9 if victim == "pump" else 1)
    if victim == "writers":
        assert "its process ended without a report" in errors
    eventually(lambda: not any(map(alive, everybody)), 60)
    # The server may still be ending the sessions of the killed processes.
    eventually(lambda: sessions(connection) == 0, 60)
    held = {identity for (identity,) in connection.execute(IDS)}
    by_outcome: dict[Outcome, set[str]] = {outcome: set() for outcome in Outcome}
    for transaction in read_history(history):
        by_outcome[transaction.outcome].update(transaction.identities())
    assert by_outcome[Outcome.COMMITTED]
    assert by_outcome[Outcome.ROLLED_BACK]
    assert by_outcome[Outcome.COMMITTED] <= held
    assert not by_outcome[Outcome.ROLLED_BACK] & held
    assert held <= by_outcome[Outcome.COMMITTED] | by_outcome[Outcome.UNKNOWN]


def sessions(connection: psycopg.Connection[Any]) -> int:
    connection.rollback()
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pump'"
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
