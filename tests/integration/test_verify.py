import functools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from typer.testing import CliRunner

from tests.processes import eventually
from tests.servers import create_topic
from thresher.cli import verify as command
from thresher.core.errors import InvalidInput
from thresher.db import TableName, statement
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.outbox import Shape, create_schema
from thresher.testing.checker import Verdict
from thresher.testing.history import Outcome, read_history
from thresher.testing.pump import Fleet, Plan
from thresher.testing.reading import ReadingFailed, read_topics, rows_held

HEADER = "pump-id"
PARTITIONS, VALUE_BYTES = 3, 40
# The topic's name in the history of a load that tests share.
TOPIC = "load-of-all-tests"
DEAD = (
    "CREATE TABLE outbox_dead AS SELECT *, now() AS dead_time, 'too large' AS reason FROM outbox"
    " WHERE id = (SELECT max(id) FROM outbox)"
)


@dataclass(slots=True, kw_only=True)
class Scene:
    """A load in an outbox, its history, and its topic."""

    bootstrap: str
    topic: str
    dsn: str
    connection: psycopg.Connection[Any]
    history: Path
    producer: Producer = field(init=False)
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.topic})
        self.producer.init_transactions()

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return key and identity of the rows, in the order of their ids."""
        query = "SELECT kafka_key, kafka_header_values[1] FROM outbox ORDER BY id"
        return [(bytes(key), bytes(name)) for key, name in self.connection.execute(query)]

    def send(self, rows: list[tuple[bytes, bytes]], *, commit: bool = True, **fields: Any) -> None:
        """Send records as the pump writes them, except for the given fields."""
        self.producer.begin_transaction()
        for key, name in rows:
            given = {"key": key, "value": name.ljust(VALUE_BYTES, b"."), "headers": [(HEADER, name)], **fields}
            self.producer.produce(self.topic, **given)
        self.end(commit=commit)

    def send_stored(self, **changes: Any) -> list[str]:
        """Send every row with all its columns, except for the given changes. Return the identities."""
        query = (
            "SELECT kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition,"
            " floor(extract(epoch FROM kafka_timestamp) * 1000)::bigint FROM outbox ORDER BY id"
        )
        self.producer.begin_transaction()
        sent = []
        for key, value, names, contents, partition, timestamp in self.connection.execute(query):
            given: dict[str, Any] = {"key": key, "value": value, "headers": list(zip(names, contents, strict=True))}
            given |= {} if partition is None else {"partition": partition}
            given |= {} if timestamp is None else {"timestamp": timestamp}
            given |= {name: change for name, change in changes.items() if name in given}
            if "headers" in changes:
                given["headers"] = [(HEADER, contents[0]), *changes["headers"]]
            self.producer.produce(self.topic, **given)
            sent.append(contents[0].decode())
        self.end()
        return sent

    def end(self, *, commit: bool = True) -> None:
        """End the transaction, and return when readers see it: a broker answers before it has written the markers."""
        self.producer.flush()
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        eventually(lambda: self._ends(levels[0]) == self._ends(levels[1]), 60)

    def _ends(self, level: IsolationLevel) -> dict[int, int]:
        asked = {TopicPartition(self.topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        found = self.admin.list_offsets(asked, isolation_level=level, request_timeout=60)
        return {place.partition: future.result().offset for place, future in found.items()}

    def clear(self) -> None:
        self.connection.execute("DELETE FROM outbox")
        self.connection.commit()

    def judge(self, **options: Any) -> Verdict:
        return command.judge(read_history(self.history), self.sources(), **options)

    def judge_of(self, topics: list[str], **options: Any) -> Verdict:
        return command.judge(read_history(self.history), self.sources(topics=topics), **options)

    def sources(self, **fields: Any) -> command.Sources:
        return command.Sources(**{"bootstrap": self.bootstrap, "topics": [self.topic], "dsn": self.dsn, **fields})

    def run(self, *arguments: str) -> Any:
        app = typer.Typer()
        app.command()(command.verify)
        # Variables of the environment must not choose the servers.
        given = ["--history", str(self.history), "--bootstrap", self.bootstrap, *arguments]
        return CliRunner().invoke(app, given, env={"THRESHER_DS": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A pumped outbox: the name of its database, which tests copy, and its history, whose topic is `TOPIC`."""

    database: str
    history: str


@pytest.fixture(scope="module")
def loads(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], Load]]:
    """Return a function that pumps a load, with a share of varied rows, once for all tests."""

    @functools.cache
    def load(varied: float) -> Load:
        name = f"verify_load_{int(100 * varied)}"
        dsn, history = stack.postgres.create_database(name), tmp_path_factory.mktemp(name) / "history.jsonl"
        made.append(name)
        with psycopg.connect(dsn) as connection:
            create_schema(connection, TableName(table="outbox"))
        plan = Plan(
            dsn=dsn, records=600, keys=10, run="run", topic=TOPIC, writers=3, rollback_share=0.3, transaction_rows=7,
            history=history, value_bytes=VALUE_BYTES, varied=varied, started=datetime.now(UTC),
        )  # fmt: skip
        Fleet(plan).run()
        return Load(database=name, history=history.read_text())

    made: list[str] = []
    yield load
    for name in made:
        stack.postgres.drop_database(name)


@pytest.fixture
def scene(
    stack: Stack,
    loads: Callable[[float], Load],
    topic_prefix: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    load = loads(getattr(request, "param", 0.0))
    topic, history = f"{topic_prefix}load", tmp_path / "history.jsonl"
    history.write_text(load.history.replace(f'"{TOPIC}"', f'"{topic}"'))
    admin = Admin(stack.kafka.bootstrap)
    create_topic(admin, topic, PARTITIONS)
    copy = topic.replace("-", "_")
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {copy} TEMPLATE {load.database}".encode())
    dsn = stack.postgres.dsn(copy)
    with psycopg.connect(dsn) as connection:
        yield Scene(bootstrap=stack.kafka.bootstrap, topic=topic, dsn=dsn, connection=connection, history=history)
    stack.postgres.drop_database(copy)


# A share of the rows has no key, more headers, a partition, a timestamp.
with_varied_rows = pytest.mark.parametrize("scene", [0.2], indirect=True, ids=["varied"])


def test_a_complete_load_is_verified_despite_aborted_records(scene: Scene) -> None:
    rows = scene.rows()
    scene.send(rows[:200], commit=False)
    for start in range(0, len(rows), 50):
        scene.send(rows[start : start + 50])
    scene.send(rows[-100:], commit=False)
    scene.clear()
    answer = scene.run("--ds", scene.dsn)
    assert answer.exit_code == 0, answer.output
    lines = answer.output.rstrip().splitlines()
    assert lines[-1] == "lost 0, phantom 0, duplicated 0, out of order 0, altered 0"
    assert any("records read" in line and str(len(rows)) in line for line in lines)


def test_records_of_a_second_pump_are_told_apart(scene: Scene) -> None:
    rows = scene.rows()
    scene.send([*rows, *((key, name.replace(b"run.", b"second.")) for key, name in rows[:50])])
    scene.clear()
    answer = scene.run("--ds", scene.dsn, "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["other_runs"]) == (0, 50)
    assert "phantom 50" in scene.run("--ds", scene.dsn, "--alone").output
    # The history of the second run.
    kept = [line for line in scene.history.read_text().splitlines() if '"row"' not in line]
    second = scene.history.with_name("second.jsonl")
    second.write_text("\n".join(kept).replace('"run":"run"', '"run":"second"'))
    together = scene.run("--ds", scene.dsn, "--history", str(second), "--json")
    assert json.loads(together.stdout)["other_runs"] == 0


def test_the_verdict_has_a_json_form(scene: Scene) -> None:
    rows = scene.rows()
    scene.send(rows)
    scene.clear()
    answer = scene.run("--json")
    content = json.loads(answer.stdout)
    committed = sum(len(t.rows) for t in read_history(scene.history) if t.outcome is Outcome.COMMITTED)
    assert content["ok"] is True
    assert content["verdict"] == "lost 0, phantom 0, duplicated 0, out of order 0, altered 0"
    assert (content["committed"], content["read"], content["keys"]) == (committed, committed, 10)
    assert content["committed"] + content["rolled_back"] == 600


def test_missing_repeated_and_phantom_records_are_reported(scene: Scene) -> None:
    rows = scene.rows()
    scene.send([*rows[:-1], rows[10]])
    scene.producer.begin_transaction()
    scene.producer.produce(scene.topic, key=b"key-0", value=b"nobody's", partition=0)
    scene.end()
    scene.clear()
    answer = scene.run("--ds", scene.dsn)
    assert answer.exit_code == 1
    assert answer.output.rstrip().splitlines()[-1] == "lost 1, phantom 1, duplicated 1, out of order 0, altered 0"
    lost, repeated = rows[-1][1].decode(), rows[10][1].decode()
    assert f"  {lost} key {rows[-1][0].decode()!r}, transaction" in answer.output
    assert f"  {repeated} key {rows[10][0].decode()!r} at {scene.topic}[" in answer.output
    assert "it has no identity" in answer.output


def test_a_record_of_a_rolled_back_transaction_is_reported(scene: Scene) -> None:
    scene.send(scene.rows())
    rolled_back = next(t for t in read_history(scene.history) if t.outcome is Outcome.ROLLED_BACK)
    name, key = next(rolled_back.identities()), rolled_back.rows[0][1]
    assert key is not None
    scene.send([(key.encode(), name.encode())])
    verdict = command.judge(read_history(scene.history), scene.sources(dsn=None))
    assert verdict.line() == "lost 0, phantom 1, duplicated 0, out of order 0, altered 0"


def test_rows_out_of_order_are_reported(scene: Scene) -> None:
    scene.send(scene.rows()[::-1])
    scene.clear()
    verdict = scene.judge()
    assert (verdict.lost, verdict.phantom, verdict.duplicated) == (0, 0, 0)
    assert verdict.reordered > 100


@with_varied_rows
def test_varied_rows_that_arrived_unchanged_are_verified(scene: Scene) -> None:
    sent = scene.send_stored()
    scene.clear()
    answer = scene.run("--ds", scene.dsn, "--json")
    content = json.loads(answer.stdout)
    assert (answer.exit_code, content["ok"], content["read"]) == (0, True, len(sent)), content
    # All records were sent after the last commit, by this machine's clock for both.
    assert 0 <= content["longest_silence_seconds"] < 600


@with_varied_rows
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("value", b"another"),
        ("value", None),
        ("key", b""),
        ("headers", []),
        ("partition", 2),
        ("timestamp", 1_700_000_000_000),
    ],
)
def test_altered_records_are_reported(scene: Scene, field: str, value: Any) -> None:
    scene.send_stored(**{field: value})
    verdict = scene.judge()
    assert (verdict.lost, verdict.phantom, verdict.duplicated) == (0, 0, 0)
    assert verdict.altered
    assert f"its {field} was" in verdict.examples["altered"][0]


def test_a_record_in_another_topic_is_altered(scene: Scene) -> None:
    rows = scene.rows()
    other = f"{scene.topic}-other"
    create_topic(Admin(scene.bootstrap), other)
    scene.send(rows[1:])
    scene.producer.begin_transaction()
    key, name = rows[0]
    scene.producer.produce(other, key=key, value=name.ljust(VALUE_BYTES, b"."), headers=[(HEADER, name)], partition=0)
    scene.end()
    scene.clear()
    answer = scene.run("--topic", scene.topic, "--topic", other)
    assert answer.exit_code == 1
    assert f"its topic was {scene.topic}, and is {other}" in answer.output
    assert answer.output.rstrip().endswith("altered 1")
    assert scene.run("--topic", scene.topic, "--topic", other, "--transformed").exit_code == 0


def test_a_history_without_a_row_is_no_success(scene: Scene) -> None:
    scene.history.write_text(
        '{"event":"run","format":"thresher-history","version":2,"run":"r","topic":"' + scene.topic + '","epoch":0}\n'
    )
    answer = scene.run()
    assert answer.exit_code == 1
    assert "no row was committed: this proves nothing" in answer.output


def test_at_least_once_allows_direct_repeats(scene: Scene) -> None:
    rows = scene.rows()
    scene.send([*rows[:50], rows[49], *rows[50:]])
    scene.clear()
    assert scene.run().exit_code == 1
    answer = scene.run("--at-least-once")
    assert answer.exit_code == 0, answer.output


def test_pending_and_dead_rows_are_looked_up_in_the_database(scene: Scene) -> None:
    rows = scene.rows()
    scene.send(rows[:-3])
    # The last row is dead. All others but two were stamped.
    scene.connection.execute(DEAD)
    scene.connection.execute("DELETE FROM outbox WHERE id IN (SELECT id FROM outbox_dead)")
    scene.connection.execute(
        "UPDATE outbox SET dispatched_time = now() WHERE id NOT IN (SELECT id FROM outbox ORDER BY id DESC LIMIT 2)"
    )
    scene.connection.commit()
    verdict = scene.judge()
    assert (verdict.pending, verdict.dead, verdict.ok) == (2, 1, False)
    assert verdict.line() == "lost 0, phantom 0, duplicated 0, out of order 0, altered 0"
    answer = scene.run("--ds", scene.dsn)
    assert answer.exit_code == 1
    assert "rows still in the outbox: 2" in answer.output
    # Without the database, pending and dead rows look lost.
    assert command.judge(read_history(scene.history), scene.sources(dsn=None)).lost == 3
    scene.send(rows[-3:])
    assert "also among the dead rows" in scene.run("--ds", scene.dsn).output


def test_dead_rows_beyond_the_allowed_number_fail(scene: Scene) -> None:
    scene.send(scene.rows()[:-1])
    scene.connection.execute(DEAD)
    scene.clear()
    answer = scene.run("--ds", scene.dsn)
    assert answer.exit_code == 1
    assert "1 row is dead, at most 0 are allowed" in answer.output
    allowed = scene.run("--ds", scene.dsn, "--allow-dead", "1")
    assert allowed.exit_code == 0, allowed.output


def test_verify_waits_until_no_row_is_pending_or_missing(scene: Scene) -> None:
    rows = scene.rows()
    scene.send(rows[:-20])

    def relay() -> None:
        time.sleep(1)
        scene.send(rows[-20:-10])
        scene.clear()
        time.sleep(1)
        scene.send(rows[-10:])

    thread = threading.Thread(target=relay)
    started = time.monotonic()
    thread.start()
    # Longer than the test may take: verify does not wait for the whole time.
    verdict = scene.judge(wait_seconds=600)
    thread.join()
    assert verdict.ok, verdict.examples
    assert time.monotonic() - started >= 2


def test_verify_waits_for_a_missing_topic(scene: Scene) -> None:
    late = f"{scene.topic}-late"
    scene.send(scene.rows())
    scene.clear()
    with pytest.raises(InvalidInput, match=f"no such topic: {late}"):
        scene.judge_of([scene.topic, late], wait_seconds=1)
    made = threading.Timer(1, lambda: Admin(scene.bootstrap).create_topic(late, partitions=1))
    made.start()
    verdict = scene.judge_of([scene.topic, late], wait_seconds=600)
    made.join()
    assert verdict.ok, verdict.examples


def test_rows_that_a_tail_keeps_are_not_pending_once_read(scene: Scene) -> None:
    rows = scene.rows()
    scene.send(rows[:-1])
    assert scene.judge().pending == len(rows)
    control = TableName(table="thresher_relay", schema="public")
    scene.connection.execute(statement("control_create", control))
    scene.connection.execute(
        "INSERT INTO thresher_relay (name, outbox, outbox_id, system_id, term, mode, shards) VALUES ('t', "
        """'"public"."outbox"', gen_random_uuid(), 's', gen_random_uuid(), 'tail', 1)"""
    )
    scene.connection.commit()
    verdict = scene.judge()
    assert (verdict.pending, verdict.lost, verdict.ok) == (1, 0, False)
    scene.send(rows[-1:])
    verdict = scene.judge()
    assert (verdict.pending, verdict.ok) == (0, True), verdict.examples


def test_waiting_ends_with_the_remaining_problems(scene: Scene) -> None:
    scene.send(scene.rows()[:-1])
    started = time.monotonic()
    verdict = scene.judge(wait_seconds=1.5)
    assert time.monotonic() - started >= 1
    assert verdict.pending == len(scene.rows())
    scene.clear()
    assert scene.judge(wait_seconds=1.5).lost == 1


def test_an_open_transaction_ends_the_reading_where_it_began(scene: Scene) -> None:
    rows = scene.rows()
    scene.send(rows[:100])
    scene.producer.begin_transaction()
    for key, name in rows[100:]:
        scene.producer.produce(scene.topic, key=key, headers=[(HEADER, name)])
    scene.producer.flush()
    assert len(read_topics(scene.bootstrap, [scene.topic])) == 100
    scene.end()
    assert len(read_topics(scene.bootstrap, [scene.topic])) == len(rows)


def test_records_are_read_whole_in_offset_order(scene: Scene) -> None:
    scene.send([(b"k", b"one"), (b"k", b"two")], partition=1)
    scene.send([(b"k", b"\xff")], partition=2)
    reads = read_topics(scene.bootstrap, [scene.topic, scene.topic])
    assert [(r.identity, r.key, r.offset) for r in reads if r.partition == 1] == [("one", b"k", 0), ("two", b"k", 1)]
    assert [(r.identity, r.topic) for r in reads if r.partition == 2] == [("\\xff", scene.topic)]
    assert len(reads) == 3


def test_a_missing_topic_is_named_and_not_made(scene: Scene) -> None:
    with pytest.raises(InvalidInput, match=f"no such topic: {scene.topic}-gone"):
        read_topics(scene.bootstrap, [scene.topic, f"{scene.topic}-gone"])
    assert [topic.name for topic in Admin(scene.bootstrap).topics(scene.topic)] == [scene.topic]


@pytest.mark.parametrize("config", [{"isolation.level": "read_uncommitted"}, {"nonsense": "1"}])
def test_an_invalid_client_property_is_named(scene: Scene, config: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(config))):
        read_topics(scene.bootstrap, [scene.topic], config=config)


def test_unreachable_brokers_are_an_error_not_an_empty_topic() -> None:
    with pytest.raises(ReadingFailed, match=r"127\.0\.0\.1:1"):
        read_topics("127.0.0.1:1", ["t"], patience_seconds=1)


def test_an_end_not_reached_in_time_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.send(scene.rows()[:10])
    # An end that is never reached, with a short time limit.
    monkeypatch.setattr("thresher.testing.reading._places", lambda *_: [(scene.topic, 0)])
    monkeypatch.setattr("thresher.testing.reading._ends", lambda *_: {(scene.topic, 0): 1000})
    with pytest.raises(ReadingFailed, match=rf"{scene.topic}\[0\] to offset 1000"):
        read_topics(scene.bootstrap, [scene.topic], patience_seconds=1)


@pytest.mark.parametrize("shape", [Shape.THRESHER, Shape.GOHARVEST])
def test_rows_are_found_in_a_table_of_any_name(dsn: str, connection: psycopg.Connection[Any], shape: Shape) -> None:
    # 58 bytes, so that the name of the table of dead rows has the full length; a percent sign is no parameter.
    table = TableName(table='my "50%s" box'.ljust(58, "x"), schema="its own")
    connection.execute('CREATE SCHEMA "its own"')
    create_schema(connection, table, shape)
    connection.commit()
    plan = Plan(dsn=dsn, records=5, keys=2, run="run", table=table.table, schema=table.schema, shape=shape)
    Fleet(plan).run()
    assert rows_held(connection, table, shape).dead == frozenset()
    outbox, dead = (psycopg.sql.Identifier("its own", name) for name in (table.table, f"{table.table}_dead"))
    connection.execute(psycopg.sql.SQL("CREATE TABLE {} AS SELECT * FROM {} WHERE id = 1").format(dead, outbox))
    connection.execute(psycopg.sql.SQL("DELETE FROM {} WHERE id = 1").format(outbox))
    connection.commit()
    held = rows_held(connection, table, shape)
    assert held.dead == {"run.0.0"}
    assert held.pending == {f"run.0.{number}" for number in range(1, 5)}


def test_dead_rows_are_found_beside_the_outbox_in_use(
    connection: psycopg.Connection[Any],
) -> None:
    # Another table of that name comes first in the search_path.
    connection.execute("CREATE SCHEMA first; CREATE TABLE first.outbox_dead (unlike text)")
    create_schema(connection, TableName(table="outbox"))
    connection.execute("SET search_path = first, public")
    connection.commit()
    assert rows_held(connection, TableName(table="outbox")).dead == frozenset()


def test_deimos_table_has_no_headers_to_identify_rows(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidInput, match="has no headers"):
        rows_held(connection, TableName(table="kafka_messages"), Shape.DEIMOS)


def test_a_missing_outbox_is_named(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidInput, match='no outbox "outbox"'):
        rows_held(connection, TableName(table="outbox"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ds": "host=somewhere"}, "--bootstrap"),
        ({"bootstrap": "b:1", "kafka": ["sasl.password"]}, "key=value"),
        ({"bootstrap": "b:1", "kafka": ["=hidden"]}, "key=value"),
        ({"bootstrap": "b:1", "ds": "postgresql://u:p@ss@host/db"}, "--ds"),
        ({"bootstrap": "b:1", "wait": float("nan")}, "--wait"),
        ({}, "thresher stack up"),
    ],
)
def test_invalid_arguments_are_reported_before_any_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("THRESHER_STATE", str(tmp_path))
    history = tmp_path / "history.jsonl"
    history.write_text(
        '{"event":"run","format":"thresher-history","version":1,"run":"r","topic":"t","clock":"monotonic-ns"}\n'
    )
    with pytest.raises(InvalidInput, match=message) as caught:
        command.verify(history=[history], **arguments)
    assert "hidden" not in str(caught.value)


def test_a_history_without_a_topic_needs_a_topic_argument(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.touch()
    with pytest.raises(InvalidInput, match="--topic"):
        command.verify(history=[history], bootstrap="b:1")


def test_the_command_imports_without_the_kafka_client() -> None:
    script = "import sys; sys.modules['confluent_kafka'] = None; import thresher.cli.verify"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
