import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.outbox import Shape, create_schema
from thresher.testing.history import Outcome, read_history
from thresher.testing.pump import Fleet, Plan, PumpFailed

IDS = "SELECT convert_from(kafka_header_values[1], 'UTF8') FROM outbox"


@pytest.fixture
def table(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    create_schema(connection, TableName(table="outbox"))
    connection.commit()
    return connection


def plan(dsn: str, **fields: Any) -> Plan:
    return Plan(**{"dsn": dsn, "records": 1000, "keys": 50, "run": "run", **fields})


def test_the_history_agrees_with_the_table(dsn: str, table: psycopg.Connection[Any], tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    tally = Fleet(plan(dsn, writers=3, rollback_share=0.3, history=history, records=3000)).run()
    transactions = read_history(history)
    by_outcome: Counter[Outcome] = Counter()
    for transaction in transactions:
        by_outcome[transaction.outcome] += len(transaction.rows)
        assert transaction.end is not None
        assert transaction.begin < transaction.end
    assert by_outcome == {Outcome.COMMITTED: tally.committed, Outcome.ROLLED_BACK: tally.rolled_back}
    assert tally.rows == 3000
    assert tally.rolled_back > 0
    committed = {i for t in transactions if t.outcome is Outcome.COMMITTED for i in t.identities()}
    assert {identity for (identity,) in table.execute(IDS)} == committed


def test_goharvests_table_is_pumped_too(dsn: str, connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, TableName(table="outbox"), Shape.GOHARVEST)
    connection.commit()
    assert Fleet(plan(dsn, shape=Shape.GOHARVEST, blank=True)).run().committed == 1000
    assert connection.execute("SELECT count(*) FROM outbox WHERE kafka_value IS NULL").fetchone() == (1000,)


def test_a_rate_is_kept(dsn: str, table: psycopg.Connection[Any]) -> None:
    tally = Fleet(plan(dsn, records=200, writers=2, transaction_rows=10, rate=200)).run()
    # The first transaction of each writer starts at once. The others keep to the rate.
    assert tally.seconds > (200 - 20) / 200 * 0.95


def test_a_stop_ends_the_pump_between_transactions(dsn: str, table: psycopg.Connection[Any]) -> None:
    fleet = Fleet(plan(dsn, records=1_000_000, writers=2, rate=1000))

    def stop() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not connection.execute("SELECT FROM outbox LIMIT 1").fetchall():
                time.sleep(0.02)
        fleet.stop()

    threading.Thread(target=stop, daemon=True).start()
    tally = fleet.run()
    assert 0 < tally.committed < 1_000_000
    assert table.execute("SELECT count(*) FROM outbox").fetchone() == (tally.committed,)


def test_a_missing_table_ends_the_pump_with_the_reason(dsn: str) -> None:
    with pytest.raises(PumpFailed, match='relation "outbox" does not exist'):
        Fleet(plan(dsn, writers=2)).run()


def test_a_wrong_password_ends_the_pump_at_once(dsn: str, table: psycopg.Connection[Any]) -> None:
    wrong = psycopg.conninfo.make_conninfo(dsn, password="wrong")
    started = time.monotonic()
    with pytest.raises(PumpFailed, match="authentication failed") as caught:
        Fleet(plan(wrong, patience_seconds=600)).run()
    assert time.monotonic() - started < 150
    assert "wrong" not in str(caught.value)


def test_a_connection_lost_during_commit_makes_the_outcome_unknown(
    dsn: str, table: psycopg.Connection[Any], tmp_path: Path
) -> None:
    # The first transaction sleeps at COMMIT, the second in its INSERT; each is terminated there.
    table.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(120); RETURN NEW; END';"
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON outbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        " WHEN (NEW.id = 1) EXECUTE FUNCTION slow();"
        "CREATE TRIGGER at_insert AFTER INSERT ON outbox FOR EACH ROW WHEN (NEW.id = 6) EXECUTE FUNCTION slow()"
    )
    table.commit()
    history = tmp_path / "history.jsonl"

    def terminate_twice() -> None:
        with psycopg.connect(dsn, autocommit=True) as killer:
            for statement in ("COMMIT", "COPY%"):
                while not killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'thresher pump'"
                    " AND state = 'active' AND query ILIKE %s AND wait_event = 'PgSleep'",
                    [statement],
                ).fetchall():
                    time.sleep(0.02)

    thread = threading.Thread(target=terminate_twice, daemon=True)
    thread.start()
    tally = Fleet(plan(dsn, records=15, transaction_rows=5, history=history)).run()
    thread.join()
    outcomes = [transaction.outcome for transaction in read_history(history)]
    assert outcomes == [Outcome.UNKNOWN, Outcome.ROLLED_BACK, Outcome.COMMITTED]
    assert (tally.unknown, tally.rolled_back, tally.committed) == (5, 5, 5)
    assert table.execute("SELECT count(*) FROM outbox").fetchone() == (5,)


def test_the_pump_survives_a_killed_database_and_notes_unknown_outcomes(stack: Stack, dsn: str, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    with psycopg.connect(dsn) as connection:
        create_schema(connection, TableName(table="outbox"))
    crashes = 0
    # Far more records than are written: the pump is stopped some time after the last crash.
    fleet = Fleet(
        plan(
            dsn, records=1_000_000, writers=4, rate=2000, transaction_rows=5, history=history, patience_seconds=120
        )
    )  # fmt: skip

    def size() -> int:
        return history.stat().st_size if history.exists() else 0

    def grown() -> None:
        """Wait for some hundred further transactions."""
        before = size()
        while size() < before + 100_000:
            time.sleep(0.02)

    def crash() -> None:
        nonlocal crashes
        try:
            for _ in range(3):
                grown()
                stack.postgres.server.kill()
                stack.postgres.start()
                crashes += 1
            grown()
        finally:
            fleet.stop()

    thread = threading.Thread(target=crash, daemon=True)
    thread.start()
    tally = fleet.run()
    thread.join()
    with psycopg.connect(dsn) as connection:
        held = {identity for (identity,) in connection.execute(IDS)}
    by_outcome: dict[Outcome, set[str]] = {outcome: set() for outcome in Outcome}
    for transaction in read_history(history):
        by_outcome[transaction.outcome].update(transaction.identities())
    assert crashes == 3
    assert tally.rows == sum(map(len, by_outcome.values()))
    assert by_outcome[Outcome.COMMITTED] <= held
    assert not by_outcome[Outcome.ROLLED_BACK] & held
    assert held <= by_outcome[Outcome.COMMITTED] | by_outcome[Outcome.UNKNOWN]
    assert len(by_outcome[Outcome.COMMITTED]) < tally.rows
