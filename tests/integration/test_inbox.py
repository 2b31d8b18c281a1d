"""Each message is processed once, by an inbox row in the processing transaction, on a real database."""

import logging
import re
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.processes import eventually
from thresher.core.errors import InvalidInput
from thresher.db import TableName, statement
from thresher.db.postgres.cursor import OwnCursor
from thresher.inbox import (
    Inbox,
    InboxBusy,
    InboxRefused,
    MessageRepeated,
    NotInTransaction,
    OnRepeat,
    UnsupportedConnection,
    check_inbox,
    create_inbox,
)
from thresher.inbox.consuming import consume
from thresher.inbox.waiting import Waiting

NAME = TableName(table="thresher_inbox")


@pytest.fixture
def observer(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        create_inbox(opened, NAME)
        opened.execute("CREATE TABLE work (n int)")
        yield opened


@pytest.fixture
def own(dsn: str, observer: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as opened:
        yield opened


def rows(observer: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    return set(observer.execute("SELECT context, message_id FROM thresher_inbox").fetchall())


def works(observer: psycopg.Connection[Any]) -> list[int]:
    return [number for (number,) in observer.execute("SELECT n FROM work ORDER BY n")]


def test_a_message_is_processed_once_and_a_repeat_is_not(
    own: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    inbox = Inbox()
    for time in range(3):
        with inbox.once(own, "m1", context="billing") as first:
            if first:
                own.execute("INSERT INTO work VALUES (1)")
        assert rows(observer) == ({("billing", "m1")} if time else set()), "not before the caller commits"
        own.commit()
    assert (rows(observer), works(observer)) == ({("billing", "m1")}, [1])
    with inbox.once(own, "m1", context="shipping") as first:
        assert first, "each context processes it once"


def test_a_rollback_of_the_caller_removes_the_inbox_row(
    own: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    with Inbox().once(own, "m1"):
        pass
    own.rollback()
    assert rows(observer) == set()
    with Inbox().once(own, "m1") as first:
        assert first


@pytest.mark.parametrize("open_before", [True, False])
def test_an_exception_in_the_block_removes_the_inbox_row(
    own: psycopg.Connection[Any], observer: psycopg.Connection[Any], open_before: bool
) -> None:
    if open_before:
        own.execute("INSERT INTO work VALUES (1)")
    with pytest.raises(ZeroDivisionError), Inbox().once(own, "m1"):
        _fail(own)
    own.execute("INSERT INTO work VALUES (3)")
    own.commit()
    assert (rows(observer), works(observer)) == (set(), [1, 3] if open_before else [3])


def _fail(connection: psycopg.Connection[Any]) -> None:
    connection.execute("INSERT INTO work VALUES (2)")
    raise ZeroDivisionError


def test_a_message_is_first_in_pipeline_mode_too(own: psycopg.Connection[Any]) -> None:
    for expected in (True, False):
        with own.pipeline(), Inbox().once(own, "m1") as first:
            assert first is expected


def test_a_failed_statement_rolls_back_its_block_alone(
    own: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    own.execute("INSERT INTO work VALUES (1)")
    with pytest.raises(psycopg.errors.UndefinedTable), Inbox().once(own, "m1"):
        own.execute("INSERT INTO nowhere VALUES (2)")
    own.commit()
    assert (rows(observer), works(observer)) == (set(), [1])


def test_an_inbox_row_joins_a_transaction_of_an_autocommit_connection(
    dsn: str, observer: psycopg.Connection[Any]
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction(), Inbox().once(connection, uuid.UUID(int=7)) as first:
            assert first
            assert rows(observer) == set()
        assert rows(observer) == {("", str(uuid.UUID(int=7)))}
        with pytest.raises(NotInTransaction, match="autocommit"), Inbox().once(connection, "m2"):
            pass
    assert len(rows(observer)) == 1


def test_concurrent_repeats_wait_for_the_first(dsn: str, observer: psycopg.Connection[Any]) -> None:
    found: list[bool] = []
    ready = threading.Barrier(16)

    def process() -> None:
        with psycopg.connect(dsn) as connection:
            ready.wait(30)
            with Inbox(wait_seconds=30).once(connection, "m1") as first:
                if first:
                    connection.execute("SELECT pg_sleep(0.3)")
                    connection.execute("INSERT INTO work VALUES (1)")
                found.append(first)

    threads = [threading.Thread(target=process) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [False] * 15 + [True]
    assert works(observer) == [1]


def test_a_waiting_repeat_is_first_when_the_other_rolls_back(
    dsn: str, own: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    found: list[bool] = []

    def process() -> None:
        with psycopg.connect(dsn, application_name="waiting") as connection, Inbox().once(connection, "m1") as first:
            found.append(first)

    with Inbox().once(own, "m1"):
        waiting = threading.Thread(target=process)
        waiting.start()
        eventually(lambda: _waits(observer), 30.0)
    own.rollback()
    waiting.join(30)
    assert found == [True]


def _waits(connection: psycopg.Connection[Any]) -> bool:
    asked = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'waiting' AND wait_event_type = 'Lock'"
    return connection.execute(asked).fetchone() is not None


@pytest.mark.timeout(60)
def test_a_wait_that_times_out_leaves_the_transaction_usable(
    dsn: str, own: psycopg.Connection[Any], observer: psycopg.Connection[Any]
) -> None:
    with Inbox().once(own, "m1"), psycopg.connect(dsn) as other:
        other.execute("SET LOCAL lock_timeout = '7s'")
        other.execute("INSERT INTO work VALUES (1)")
        with pytest.raises(InboxBusy, match=r"for longer than 0\.2 s"), Inbox(wait_seconds=0.2).once(other, "m1"):
            pass
        with Inbox().once(other, "m2"):
            pass
        assert other.execute("SHOW lock_timeout").fetchone() == ("7s",)
        other.commit()
    assert works(observer) == [1]
    assert rows(observer) == {("", "m2")}


class OneRecord:
    """A consumer with one record, as the Kafka client returns it."""

    def __init__(self) -> None:
        self.sought: list[int] = []

    def consume(self, *_: object) -> list[Any]:
        answers = {"error": None, "topic": "t", "partition": 0, "offset": 7, "key": None, "value": b"v"}
        given = {name: (lambda answer=answer: answer) for name, answer in answers.items()}
        return [SimpleNamespace(**given, headers=lambda: [("event-id", b"m1")])]

    def seek(self, place: Any) -> None:
        self.sought.append(place.offset)


def test_a_consumer_behind_a_hanging_transaction_says_which(
    dsn: str, observer: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Waiting] = []
    consumer = OneRecord()
    with psycopg.connect(dsn, application_name="hangs") as hanging, Inbox().once(hanging, "m1"):
        with pytest.raises(InboxBusy) as caught:
            consume(
                consumer,
                partial(psycopg.connect, dsn),
                lambda *_: None,
                inbox=Inbox(wait_seconds=1.0),
                busy_seconds=2.5,
                on_wait=told.append,
            )
        pid = f"backend {hanging.info.backend_pid} "
    assert pid in str(caught.value)
    assert "'hangs'" in told[-1].why
    assert told[-1].seconds >= 2.5
    assert [each for each in caplog.records if each.levelname == "WARNING" and pid in each.getMessage()]
    # The record is not lost.
    assert consumer.sought == [7]


def test_a_repeat_is_logged_or_raised_on_request(
    own: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with Inbox().once(own, "m1", "billing"):
        pass
    with caplog.at_level(logging.WARNING), Inbox(on_repeat=OnRepeat.WARN).once(own, "m1", "billing") as first:
        assert not first
    assert "message m1 was processed before by billing, and is skipped" in caplog.text
    own.execute("INSERT INTO work VALUES (1)")
    with pytest.raises(MessageRepeated, match="m1"), Inbox(on_repeat=OnRepeat.RAISE).once(own, "m1", "billing"):
        raise AssertionError("the handler must not run")
    assert own.execute("SELECT count(*) FROM work").fetchone() == (1,), "the transaction goes on"


def test_a_guarded_handler_runs_once(own: psycopg.Connection[Any]) -> None:
    inbox = Inbox()

    def number(order: dict[str, Any], *, times: int) -> int:
        assert times
        return int(order["id"])

    @inbox.guarded(number, context="billing")
    def handle(connection: psycopg.Connection[Any], /, order: dict[str, Any], *, times: int) -> int:
        """Bill an order."""
        connection.execute("INSERT INTO work VALUES (%s)", [times])
        return times

    assert (handle.__name__, handle.__doc__) == ("handle", "Bill an order.")
    assert handle(own, {"id": 5}, times=3) == 3
    assert handle(own, {"id": 5}, times=4) is None
    assert handle(own, {"id": 6}, times=5) == 5
    assert works(own) == [3, 5]


@pytest.mark.parametrize("given", ["", "x" * 256, None, 1.5, b"m", True, "a\0b", "\ud800"])
def test_an_invalid_message_id_is_refused_before_any_write(own: psycopg.Connection[Any], given: Any) -> None:
    own.execute("INSERT INTO work VALUES (1)")
    with pytest.raises(InvalidInput, match="message id"), Inbox().once(own, given):
        pass
    assert works(own) == [1]
    with pytest.raises(InvalidInput, match="context"), Inbox().once(own, "m", context=given or "x" * 101):
        pass


def test_an_object_that_is_no_connection_is_refused() -> None:
    with pytest.raises(UnsupportedConnection), Inbox().once("dsn", "m1"):  # type: ignore[arg-type]
        pass
    for seconds in (0, -1, float("nan"), 86_401, "10", True):
        with pytest.raises(InvalidInput, match="wait_seconds"):
            Inbox(wait_seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="one of skip, warn, raise"):
        Inbox(on_repeat="x")  # type: ignore[arg-type]

    async def handle(_: Any) -> None:
        pass

    with pytest.raises(InvalidInput, match="coroutine"):
        Inbox().guarded(lambda: "m1")(handle)


def test_old_rows_are_removed_in_batches(dsn: str, observer: psycopg.Connection[Any]) -> None:
    observer.execute(
        "INSERT INTO thresher_inbox SELECT 'c', n::text, clock_timestamp() - n * interval '1 hour' "
        "FROM generate_series(0, 99) n"
    )
    with psycopg.connect(dsn) as connection:
        assert Inbox().trim(connection, 49.5 * 3600, batch_rows=7) == 50
        assert observer.execute("SELECT count(*), max(message_id::int) FROM thresher_inbox").fetchone() == (50, 49)
        connection.execute("SELECT 1")
        with pytest.raises(InvalidInput, match="without an open transaction"):
            Inbox().trim(connection, 0)


def test_removing_a_batch_reads_no_rows_beyond_it(observer: psycopg.Connection[Any]) -> None:
    observer.execute(
        "INSERT INTO thresher_inbox SELECT 'c', n::text, clock_timestamp() - n * interval '1 second' "
        "FROM generate_series(0, 20000) n"
    )
    observer.execute("ANALYZE thresher_inbox")
    explained = OwnCursor(observer).execute("EXPLAIN " + statement("inbox_trim", NAME), [19_000, 100])
    plan = "\n".join(line for (line,) in explained)
    assert "Seq Scan" not in plan, plan
    assert "Index Cond: (received_time <" in plan, plan


def test_inbox_tables_are_created_once_and_checked(observer: psycopg.Connection[Any]) -> None:
    assert create_inbox(observer, NAME) is False
    assert check_inbox(observer, NAME) == ()
    other = TableName(table="other")
    assert "no such table" in check_inbox(observer, other)[0]
    observer.execute("CREATE UNLOGGED TABLE other (context text, message_id int, must int NOT NULL)")
    observer.execute("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    observer.execute("CREATE TRIGGER dropping BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION nothing()")
    problems = " ".join(check_inbox(observer, other))
    for expected in (
        "UNLOGGED",
        "message_id is integer",
        "received_time is missing",
        "must is NOT NULL",
        "unique",
        "dropping",
        "other_dead",
    ):
        assert expected in problems
    with pytest.raises(InboxRefused, match="cannot be used as an inbox"):
        create_inbox(observer, other)


def test_the_example_of_the_page_runs(
    dsn: str, observer: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "inbox.md").read_text()
    example, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("THRESHER_DS", dsn)
    observer.execute("CREATE TABLE accounts AS SELECT 1 AS id, 100 AS balance")
    for _ in range(2):
        exec(example, {})  # noqa: S102 - it is our own
    assert observer.execute("SELECT balance FROM accounts").fetchone() == (95,)
    assert rows(observer) == {("billing", "message-17")}
