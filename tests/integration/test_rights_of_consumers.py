"""The printed roles of captures and inboxes: what they do, and everything that they must not do."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.attacks import anywhere, try_all
from tests.capture.captured import PATIENCE_SECONDS, CapturedOrders, captured
from tests.processes import eventually
from thresher.capture.problem import CaptureRefused, RecordDead
from thresher.capture.publishing import EntityPublisher
from thresher.capture.store.schema import require_schema
from thresher.cli.capture.schema import print_ddl as print_capture
from thresher.cli.inbox import print_ddl as print_inbox
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.inbox import Inbox
from thresher.inbox.dead import InboxRecord, set_aside
from thresher.outbox import Message
from thresher.spark.session.session import Session

_SHARED = ("thresher_captures", "thresher_capture_offsets", "thresher_capture_dead", "thresher_lease")
# As another capture of the schema has them.
_OTHERS = """
INSERT INTO thresher_captures VALUES ('other', 'term');
INSERT INTO thresher_capture_offsets VALUES ('other', 't', 0, 'id', 5);
INSERT INTO thresher_capture_dead (capture, kafka_topic, topic_id, kafka_partition, kafka_offset, kafka_timestamp,
                                   kafka_header_keys, kafka_header_values, kind, reason)
VALUES ('other', 't', 'id', 0, 1, 1, '{}', '{}', 'x', 'y');
INSERT INTO thresher_lease VALUES ('other.capture', gen_random_uuid(), 1, now(), '1s');
"""


@pytest.fixture
def login(dsn: str) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Return a function that makes a role, and returns its name and connection string."""
    made: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as owner:

        def make(kind: str) -> tuple[str, str]:
            made.append(f"{kind}_{uuid.uuid4().hex[:8]}")
            owner.execute(f"CREATE ROLE {made[-1]} LOGIN PASSWORD 'right'".encode())
            return made[-1], psycopg.conninfo.make_conninfo(dsn, user=made[-1], password="right")

        try:
            yield make
        finally:
            for name in made:
                owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_a_captures_role_captures_and_touches_no_other_capture(
    stack: Stack,
    spark: Session,
    dsn: str,
    tmp_path: Path,
    login: Callable[[str], tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = CapturedOrders(stack.kafka.bootstrap, dsn)
    (role, own), (waiting, waits) = login("capture"), login("waiting")
    file = tmp_path / "capture.yaml"
    file.write_text(json.dumps(orders.keys))
    print_capture(file, role=role, waiting_role=waiting)
    printed = capsys.readouterr().out
    with psycopg.connect(dsn, autocommit=True) as owner, psycopg.connect(own, autocommit=True) as mine:
        owner.execute("CREATE TABLE others (id text PRIMARY KEY)")
        # Rights alone are not enough: without a policy the role would begin anew.
        owner.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}".encode())
        with pytest.raises(CaptureRefused, match="policies hide every row"):
            require_schema(mine, orders.settings.tables, orders.settings.mappings)
        owner.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}".encode())
        for _ in range(2):
            owner.execute(printed.encode())
        require_schema(mine, orders.settings.tables, orders.settings.mappings)
        owner.execute(_OTHERS.encode())
        with (
            captured(orders, data_source=own, election="lease"),
            EntityPublisher(orders.eyes, waits, capture="shop") as publisher,
        ):
            publisher.publish_and_wait(Message(topic=orders.topic, key="a", value=b'{"total": 1}'), PATIENCE_SECONDS)
            with pytest.raises(RecordDead):
                publisher.publish_and_wait(Message(topic=orders.topic, key="b", value=b"{"), PATIENCE_SECONDS)
            orders.publish(("c", 3))
            orders.await_rows({"a": 1, "c": 3})
        eventually(lambda: len(orders.dead()) == 2, PATIENCE_SECONDS)

        def contents() -> list[object]:
            return [
                owner.execute(f"SELECT t::text, xmin FROM {each} t ORDER BY 1".encode()).fetchall() for each in _SHARED
            ]

        before = contents()
        change = ("DELETE FROM {}", "SELECT * FROM {}", "SELECT 1 FROM {} FOR UPDATE")
        of_others = {
            table: f"{'name' if table in (_SHARED[0], _SHARED[3]) else 'capture'} LIKE 'other%'" for table in _SHARED
        }
        try_all(
            own,
            [
                *(each.format(f"{table} WHERE {where}") for table, where in of_others.items() for each in change),
                "UPDATE thresher_captures SET term = 'mine' WHERE name = 'other'",
                "UPDATE thresher_captures SET name = 'other2'",
                "INSERT INTO thresher_captures VALUES ('other', 't') ON CONFLICT (name) DO UPDATE SET term = 't'",
                "UPDATE thresher_capture_offsets SET next_offset = 0 WHERE capture = 'other'",
                "UPDATE thresher_capture_offsets SET capture = 'other'",
                "INSERT INTO thresher_capture_offsets VALUES ('third', 't', 0, 'id', 5)",
                "SELECT * FROM others",
                "DELETE FROM others",
                "CREATE TABLE planted (n int)",
            ],
        )
        try_all(
            waits,
            [
                *anywhere(*_SHARED),
                *(each.format(table) for table in (*_SHARED, "orders") for each in change),
                "SELECT kafka_value FROM thresher_capture_dead",
                "SELECT next_offset FROM thresher_capture_offsets WHERE capture = 'other'",
                "UPDATE thresher_capture_offsets SET next_offset = 0",
            ],
        )
        assert contents() == before


def test_a_consumers_role_enters_messages_and_undoes_nothing(
    dsn: str, login: Callable[[str], tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (role, own), (operator, operates) = login("consumer"), login("operator")
    print_inbox(role=role, operator_role=operator)
    printed = capsys.readouterr().out
    with psycopg.connect(dsn, autocommit=True) as owner:
        for _ in range(2):
            owner.execute(printed.encode())
        inbox = Inbox()
        with psycopg.connect(own) as connection:
            for number in range(3):
                with inbox.once(connection, f"m{number % 2}", context="c") as first:
                    assert first == (number < 2)
            set_aside(
                connection,
                TableName(table="thresher_inbox"),
                InboxRecord(topic="t", partition=0, offset=1, key=None, value=b"v"),
                context="c",
                message_id="m0",
                reason="r",
                attempts=1,
            )
        tables = ("thresher_inbox", "thresher_inbox_dead")
        before = [owner.execute(f"SELECT *, xmin FROM {table}".encode()).fetchall() for table in tables]
        assert [len(each) for each in before] == [2, 1]
        attacks = [
            *anywhere(*tables),
            "UPDATE thresher_inbox SET message_id = 'other'",
            "UPDATE thresher_inbox_dead SET reason = ''",
            "INSERT INTO thresher_inbox (context, message_id, received_time) VALUES ('c', 'x', now())",
            "INSERT INTO thresher_inbox_dead (dead_time) VALUES (now())",
        ]
        try_all(own, [*attacks, "DELETE FROM thresher_inbox", "SELECT kafka_value FROM thresher_inbox_dead"])
        # Removing is what an operator's role is for; then it can lock the tables too.
        try_all(operates, [each for each in attacks if not each.startswith("LOCK")])
        assert [owner.execute(f"SELECT *, xmin FROM {table}".encode()).fetchall() for table in tables] == before
        with psycopg.connect(operates, autocommit=True) as connection:
            assert inbox.trim(connection, older_than_seconds=0) == 2
            assert connection.execute("DELETE FROM thresher_inbox_dead RETURNING reason").fetchall() == [("r",)]
