"""One database transaction of a capture: its effect on rows, guard columns, stored offsets and dead records."""

import contextlib
import dataclasses
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import given, settings

from tests.capture.model import CUTS, ModelRows, Written, cut, logs, take_batch
from tests.processes import eventually
from thresher.capture.applying import Applied, Applier
from thresher.capture.positions import Beyond, Covered, Due, Part
from thresher.capture.problem import CaptureRefused, HandlerEndedTransaction, OffsetsMissing, RecordsKeepFailing
from thresher.capture.record import CapturedRecord
from thresher.capture.rows.mapping import Mapper, TopicMapping
from thresher.capture.settings import CaptureSettings
from thresher.capture.shard import SESSION, session_of
from thresher.capture.store.dead import DeadRecords
from thresher.capture.store.entity_table import entity_table, table_problems
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import StoredOffset, StoredOffsets
from thresher.capture.store.schema import create_schema, require_schema, schema_problems
from thresher.capture.targets import HandlerTarget, TableTarget, Target, targets_of
from thresher.db import TableName
from thresher.db.postgres.sessions import session
from thresher.db.problem import DatabaseRefused
from thresher.kafka.partition_watch import PositionLost

ORDERS = TopicMapping(
    topic="orders",
    table=TableName(table="orders"),
    key=("id",),
    columns={"id": "$key", "total": "total", "tags": "tags", "doc": "doc", "code": "code"},
)
IDS = {"orders": "id-1"}


def record(offset: int, key: bytes | None, value: Any, *, partition: int = 0, at: int = 0) -> CapturedRecord:
    content = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return CapturedRecord("orders", partition, offset, at, key, content, (("h", b"v"),))


def part(*records: CapturedRecord, start: int | None = None, end: int | None = None, partition: int = 0) -> Part:
    return Part(
        "orders",
        partition,
        records[0].offset if start is None else start,
        records[-1].offset + 1 if end is None else end,
        records,
    )


class Place:
    """A database with a table of orders, and a capture that writes to it."""

    def __init__(self, dsn: str, *, target: Target | None = None, **settings: Any) -> None:
        self.connection = psycopg.connect(session(dsn, "capture-test", SESSION, path=""), autocommit=True)
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, total numeric(10, 2) NOT NULL CHECK (total >= 0), "
            "tags integer[], doc jsonb, code varchar(3))"
        )
        self.settings = CaptureSettings(name="c", dsn=dsn, kafka={}, mappings=(ORDERS,), **settings)
        create_schema(self.connection, self.settings.tables, self.settings.mappings)
        self.offsets = StoredOffsets(self.connection, self.settings.tables, "c")
        self.dead = DeadRecords(self.connection, self.settings.tables, "c")
        for partition in range(3):
            self.offsets.begin(("orders", partition), StoredOffset("id-1", 0))
        targets = targets_of(self.connection, self.settings.mappings) if target is None else {"orders": target}
        self.applier = Applier(self.connection, self.settings, targets)

    def apply(self, *parts: Part) -> Applied:
        return self.applier.apply(parts, IDS)

    def rows(self, columns: str = "id, total::float") -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT {columns} FROM orders ORDER BY id".encode()).fetchall()

    def stored(self, partition: int = 0) -> int:
        return self.offsets.read()["orders", partition].next_offset

    def reasons(self) -> dict[int, str]:
        return {each.record.offset: each.flaw.kind for each in self.dead.list()}


@pytest.fixture
def place(dsn: str) -> Iterator[Place]:
    made = Place(dsn)
    yield made
    made.connection.close()


def total(offset: int, key: bytes, amount: float, **more: Any) -> CapturedRecord:
    return record(offset, key, {"total": amount}, **more)


def test_the_newest_record_of_a_key_becomes_its_row(place: Place) -> None:
    value = {"total": 2.5, "tags": [1, None], "doc": {"a": [1.10]}, "code": "abc"}
    done = place.apply(part(total(0, b"a", 1), record(1, b"b", value), total(2, b"a", 3), record(3, b"c", None)))
    assert place.rows("id, total::float, tags, doc::text, code, thresher_partition, thresher_offset") == [
        ("a", 3.0, None, None, None, 0, 2),
        ("b", 2.5, [1, None], '{"a": [1.1]}', "abc", 0, 1),
    ]
    assert (place.stored(), done.records, done.dead) == (4, {"orders": 4}, {})


def test_a_tombstone_deletes_the_row(place: Place) -> None:
    place.apply(part(total(0, b"a", 1), total(1, b"b", 1)))
    place.apply(part(record(2, b"a", None)))
    assert place.rows() == [("b", 1.0)]


def test_records_below_the_stored_offset_are_skipped(place: Place) -> None:
    place.apply(part(total(0, b"a", 1), total(1, b"b", 1), end=5))
    place.apply(part(record(5, b"b", None)))
    done = place.apply(part(total(0, b"a", 7), total(1, b"b", 7), total(6, b"c", 7), start=0))
    assert place.rows() == [("a", 1.0), ("c", 7.0)], "b was deleted, and has no guard"
    assert isinstance(done.verdicts["orders", 0], Due)
    assert done.records == {"orders": 1}
    again = place.apply(part(total(0, b"a", 8)))
    assert again.verdicts == {("orders", 0): Covered(7)}
    assert place.stored() == 7


def test_a_batch_from_beyond_the_stored_offset_is_not_applied(place: Place) -> None:
    place.apply(part(total(0, b"a", 1)))
    done = place.apply(part(total(3, b"a", 2), start=2))
    assert done.verdicts == {("orders", 0): Beyond(1)}
    assert (place.rows(), place.stored()) == ([("a", 1.0)], 1)


def test_gaps_between_offsets_do_not_restart_reading(place: Place) -> None:
    place.apply(part(total(4, b"a", 1), total(9, b"b", 1), start=0, end=12))
    place.apply(Part("orders", 0, 12, 20))
    assert (place.stored(), len(place.rows())) == (20, 2)


def test_a_recreated_topic_is_noticed_within_the_transaction(place: Place) -> None:
    with pytest.raises(PositionLost, match="thresher capture adopt"):
        place.applier.apply([part(total(0, b"a", 1))], {"orders": "id-2"})
    assert (place.rows(), place.stored()) == ([], 0)


def test_a_removed_stored_offset_is_reported(place: Place) -> None:
    place.connection.execute("DELETE FROM thresher_capture_offsets")
    with pytest.raises(OffsetsMissing):
        place.apply(part(total(0, b"a", 1)))


def test_between_partitions_the_later_timestamp_wins(place: Place) -> None:
    place.apply(part(total(100, b"a", 1, at=50), start=0), part(total(0, b"b", 1, partition=1, at=50), partition=1))
    place.apply(part(total(1, b"a", 2, partition=1, at=60), partition=1))
    place.apply(part(total(101, b"a", 3, at=55), total(102, b"b", 3, at=49)))
    assert place.rows("id, total::float, thresher_partition") == [("a", 2.0, 1), ("b", 1.0, 1)]


def test_the_higher_partition_wins_between_equal_timestamps(place: Place) -> None:
    higher, lower = total(0, b"a", 2, partition=2, at=5), total(0, b"a", 1, partition=1, at=5)
    place.apply(part(higher, partition=2))
    place.apply(part(lower, partition=1))
    assert place.rows() == [("a", 2.0)]


def test_a_tombstone_of_the_higher_partition_wins_between_equal_timestamps(place: Place) -> None:
    place.apply(part(total(0, b"a", 1, partition=1, at=5), partition=1))
    place.apply(part(record(0, b"a", None, partition=0, at=5)))
    assert place.rows() == [("a", 1.0)]
    place.apply(part(record(0, b"a", None, partition=2, at=5), partition=2))
    assert place.rows() == []


def test_a_clock_that_goes_back_lets_no_other_partition_win(place: Place) -> None:
    place.apply(part(total(0, b"a", 1, at=10), total(1, b"a", 2, at=4)))
    place.apply(part(total(2, b"a", 3, at=5)))
    place.apply(part(total(0, b"a", 9, partition=1, at=7), partition=1))
    assert place.rows("id, total::float, thresher_timestamp") == [("a", 3.0, 10)]


def test_a_key_in_several_partitions_gets_the_latest_record(place: Place) -> None:
    place.apply(
        part(total(0, b"a", 1, at=10), record(1, b"b", None, at=9)),
        part(total(0, b"a", 2, partition=1, at=30), total(1, b"b", 5, partition=1, at=5), partition=1),
        part(total(0, b"a", 3, partition=2, at=20), partition=2),
    )
    assert place.rows() == [("a", 2.0)]


def test_a_late_tombstone_of_another_partition_deletes_nothing(place: Place) -> None:
    place.apply(part(total(0, b"a", 1, at=10)))
    place.apply(part(record(0, b"a", None, partition=1, at=9), partition=1))
    assert place.rows() == [("a", 1.0)]
    place.apply(part(record(1, b"a", None, partition=1, at=11), partition=1))
    assert place.rows() == []


def test_the_database_decides_as_the_reference_model(place: Place) -> None:
    @settings(max_examples=60)
    @given(logs(3, deletes=True), CUTS)
    def check(log: list[Written], cuts: list[int]) -> None:
        place.connection.execute("TRUNCATE orders; UPDATE thresher_capture_offsets SET next_offset = 0")
        rows: ModelRows = {}
        for batch in cut(log, cuts):
            parts = []
            for partition in {each.partition for each in batch}:
                some = [
                    record(
                        each.offset,
                        b"%d" % each.key,
                        None if each.value is None else {"total": each.value},
                        partition=partition,
                        at=each.time,
                    )
                    for each in batch
                    if each.partition == partition
                ]
                parts.append(part(*some, start=0, partition=partition))
            place.apply(*parts)
            take_batch(rows, batch)
        found = place.rows("id::int, total::int, thresher_partition, thresher_offset, thresher_timestamp")
        assert {key: tuple(rest) for key, *rest in found} == rows

    check()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"{", "malformed"),
        ({"total": "much"}, "type"),
        ({"total": -1}, "constraint"),
        ({"other": 1}, "constraint"),
        ({"total": 1, "code": "abcd"}, "type"),
        ({"total": 1, "tags": 7}, "type"),
        ({"total": 1e12}, "type"),
        ({"total": "1e400000"}, "type"),
        ({"total": 1, "code": "a\0"}, "type"),
        ({"total": 1, "code": "\ud800"}, "type"),
    ],
)
def test_a_bad_record_becomes_dead_and_the_others_are_applied(place: Place, value: Any, kind: str) -> None:
    good = [total(number, b"%d" % number, 1) for number in range(9) if number != 4]
    done = place.apply(part(*good[:4], record(4, b"bad", value), *good[4:]))
    assert len(place.rows()) == 8
    assert (place.reasons(), place.stored(), done.dead) == ({4: kind}, 9, {("orders", kind): 1})
    (dead,) = place.dead.list(whole=True)
    assert (dead.record.key, dead.record.headers, dead.topic_id) == (b"bad", (("h", b"v"),), "id-1")
    assert dead.flaw.reason


def test_a_record_that_the_database_refuses_becomes_dead(dsn: str) -> None:
    place = Place(dsn)
    raw = dataclasses.replace(ORDERS, columns={"id": "$key", "doc": "$value"})
    place.connection.execute("ALTER TABLE orders ALTER COLUMN total DROP NOT NULL")
    place.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
        "IF NEW.id = 'own' THEN RAISE 'no' USING ERRCODE = 'ZX001'; END IF; "
        "IF NEW.id = 'assert' THEN ASSERT false; END IF; RETURN NEW; END$$; "
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    deep = b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    place.applier = Applier(place.connection, place.settings, targets_of(place.connection, [raw]))
    good, own = [record(offset, b"%d" % offset, {}) for offset in (0, 4)], record(2, b"own", {})
    place.apply(part(good[0], record(1, b"deep", deep), own, record(3, b"assert", {}), good[1]))
    assert (place.rows("id"), place.stored()) == ([("0",), ("4",)], 5)
    assert place.reasons() == {1: "type", 2: "constraint", 3: "constraint"}
    place.connection.close()


def test_a_string_in_a_json_column_is_a_json_string(place: Place) -> None:
    texts = ["123", "{", "null"]
    place.apply(part(*(record(n, b"%d" % n, {"total": 1, "doc": text}) for n, text in enumerate(texts))))
    assert place.rows("doc, jsonb_typeof(doc)") == [(text, "string") for text in texts]


def test_the_last_good_record_of_a_key_counts(place: Place) -> None:
    place.apply(part(total(0, b"a", 1), total(1, b"a", 2), total(2, b"a", -1), record(3, b"a", b"[]")))
    assert (place.rows(), place.reasons()) == ([("a", 2.0)], {2: "constraint", 3: "malformed"})


def test_a_key_of_an_extensions_type_is_compared_by_its_own_operator(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE EXTENSION vector SCHEMA public; CREATE TABLE orders (id vector(2) PRIMARY KEY, total numeric, "
            "tags integer[], doc jsonb, code text)"
        )
    place = Place(dsn)
    place.connection.execute("SET search_path = pg_catalog, pg_temp")
    table = dataclasses.replace(ORDERS, table=TableName(table="orders", schema="public"))
    targets = targets_of(place.connection, [table])
    place.settings = dataclasses.replace(place.settings, schema="public")
    place.applier = Applier(place.connection, place.settings, targets)
    place.apply(part(record(0, b"[1,2]", {"total": 1}), record(1, b"[3,4]", {"total": 2})))
    place.apply(part(record(2, b"[1, 2]", None)))
    assert place.connection.execute("SELECT id::text FROM public.orders").fetchall() == [("[3,4]",)]
    place.connection.close()


def test_two_texts_for_one_key_are_both_applied(dsn: str) -> None:
    place = Place(dsn)
    place.connection.execute("ALTER TABLE orders ALTER COLUMN id TYPE integer USING id::integer")
    place.applier = Applier(place.connection, place.settings, targets_of(place.connection, place.settings.mappings))
    place.apply(part(total(0, b"1", 1), total(1, b"01", 2), record(2, b"2", {"total": 3}), record(3, b"02", None)))
    assert (place.rows(), place.reasons()) == ([(1, 2.0)], {})
    place.connection.close()


def test_a_deferred_constraint_fails_one_record(place: Place) -> None:
    place.connection.execute("CREATE TABLE codes (code varchar(3) PRIMARY KEY)")
    place.connection.execute("INSERT INTO codes VALUES ('a')")
    place.connection.execute("ALTER TABLE orders ADD FOREIGN KEY (code) REFERENCES codes DEFERRABLE INITIALLY DEFERRED")
    place.apply(
        part(*(record(offset, b"%d" % offset, {"total": 1, "code": code}) for offset, code in enumerate("abaa")))
    )
    assert ([key for key, _ in place.rows()], place.reasons()) == (["0", "2", "3"], {1: "constraint"})


def test_rows_of_a_batch_may_reference_each_other(dsn: str) -> None:
    place = Place(dsn)
    place.connection.execute("CREATE TABLE customers (id text PRIMARY KEY, age integer)")
    place.connection.execute(
        "CREATE TABLE lines (id text PRIMARY KEY, customer text REFERENCES customers DEFERRABLE INITIALLY DEFERRED)"
    )
    lines = TopicMapping(
        topic="lines", table=TableName(table="lines"), key=("id",), columns={"id": "$key", "customer": "customer"}
    )
    customers = TopicMapping(
        topic="customers", table=TableName(table="customers"), key=("id",), columns={"id": "$key", "age": "age"}
    )
    settings = dataclasses.replace(place.settings, mappings=(lines, customers))
    create_schema(place.connection, settings.tables, settings.mappings)
    for topic in settings.topics:
        place.offsets.begin((topic, 0), StoredOffset("id", 0))
    applier = Applier(place.connection, settings, targets_of(place.connection, settings.mappings))
    given = {
        "lines": [(b"l2", b'{"customer": "c2"}'), (b"l3", b'{"customer": "c2"}')],
        "customers": [(b"c2", b'{"age": 1}'), (b"c3", b'{"age": "old"}')],
    }
    parts = [
        Part(topic, 0, 0, 2, [CapturedRecord(topic, 0, n, 0, key, value) for n, (key, value) in enumerate(some)])
        for topic, some in given.items()
    ]
    applier.apply(parts, dict.fromkeys(settings.topics, "id"))
    assert [(each.record.key, each.flaw.kind) for each in place.dead.list()] == [(b"c3", "type")]
    assert place.connection.execute("SELECT id FROM lines ORDER BY id").fetchall() == [("l2",), ("l3",)]
    place.connection.close()


def test_many_consecutive_dead_records_blame_the_mapping(dsn: str) -> None:
    place = Place(dsn, most_dead_in_a_row=5)
    place.apply(part(*(total(offset, b"a", -1) for offset in range(5))))
    with pytest.raises(RecordsKeepFailing, match="6 records of orders in a row"):
        place.apply(part(total(5, b"a", -1)))
    assert (place.stored(), len(place.reasons())) == (5, 5)
    place.apply(part(total(5, b"a", 1), *(total(offset, b"a", -1) for offset in range(6, 11))))
    assert place.stored() == 11
    place.connection.close()


def test_a_second_capture_waits_and_then_changes_nothing(dsn: str) -> None:
    first, second = Place(dsn), Place(dsn)
    done: list[Applied] = []
    with first.connection.transaction():
        first.offsets.lock([("orders", 0)])
        thread = threading.Thread(target=lambda: done.append(second.apply(part(total(0, b"a", 2)))))
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: first.connection.execute(waits).fetchone() != (0,), 10.0)
        first.connection.execute("INSERT INTO orders (id, total, thresher_offset) VALUES ('a', 1, 0)")
        first.offsets.move({("orders", 0): 1})
    thread.join(30)
    assert done[0].verdicts == {("orders", 0): Covered(1)}
    assert first.rows() == [("a", 1.0)]
    first.connection.close()
    second.connection.close()


def test_a_handler_gets_the_records_and_their_transaction(dsn: str) -> None:
    calls: list[list[int]] = []

    def handle(connection: psycopg.Connection[Any], records: Sequence[CapturedRecord]) -> None:
        calls.append([each.offset for each in records])
        for each in records:
            fields = json.loads(each.value or b"{}")
            if fields.get("total") == 13:
                raise ValueError("no luck")
            connection.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", [each.key, fields["total"]])

    place = Place(dsn, target=HandlerTarget(handle))
    place.connection.execute("ALTER TABLE orders ALTER COLUMN id TYPE bytea USING id::bytea")
    place.apply(part(total(0, b"a", 1), total(1, b"a", 2), total(2, b"b", 13), total(3, b"c", 3)))
    assert calls[0] == [0, 1, 2, 3]
    assert place.reasons() == {1: "handler", 2: "handler"}
    assert (place.rows(), place.stored()) == ([(b"a", 1.0), (b"c", 3.0)], 4)
    reasons = [each.flaw.reason for each in place.dead.list()]
    assert reasons[0].startswith("UniqueViolation: ")
    assert reasons[1] == "ValueError: no luck"
    place.connection.close()


def test_a_handler_that_hides_an_error_has_failed(dsn: str) -> None:
    def handle(connection: psycopg.Connection[Any], _: Sequence[CapturedRecord]) -> None:
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0")

    place = Place(dsn, target=HandlerTarget(handle))
    place.apply(part(total(0, b"a", 1)))
    assert (place.reasons(), place.stored()) == ({0: "handler"}, 1)
    place.connection.close()


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT", "COMMIT; BEGIN", "ROLLBACK; BEGIN"])
def test_a_handler_that_ends_its_transaction_ends_the_capture(dsn: str, ending: LiteralString) -> None:
    place = Place(dsn, target=HandlerTarget(lambda connection, _: connection.execute(ending)))
    with pytest.raises(HandlerEndedTransaction, match="neither commit nor roll back"):
        place.apply(part(total(0, b"a", 1)))
    assert (place.stored(), place.reasons()) == (0, {})
    place.connection.close()


def test_a_lock_timeout_in_a_handler_makes_no_dead_record(dsn: str, connection: psycopg.Connection[Any]) -> None:
    def handle(given: psycopg.Connection[Any], _: Sequence[CapturedRecord]) -> None:
        given.execute("SET LOCAL lock_timeout = '100ms'")
        given.execute("UPDATE orders SET total = 1")

    place = Place(dsn, target=HandlerTarget(handle))
    connection.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        place.apply(part(total(0, b"a", 1)))
    assert (place.stored(), place.reasons()) == (0, {})
    place.connection.close()


def test_a_handler_may_compute_for_minutes(place: Place) -> None:
    handled = dataclasses.replace(place.settings, mappings=(TopicMapping(topic="orders", handler="m:f"),))
    for each, limit in ((place.settings, "15s"), (handled, "5min")):
        with psycopg.connect(
            session(each.dsn, "capture-test", session_of(each), path=""), autocommit=True
        ) as connection:
            assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == (limit,)


def test_a_slow_decoder_holds_no_transaction_open(dsn: str) -> None:
    def decode(given: CapturedRecord) -> Any:
        time.sleep(0.05)
        return json.loads(given.value or b"")

    place = Place(dsn)
    table = entity_table(place.connection, ORDERS)
    mapper = Mapper(ORDERS, arrays=table.arrays, json=table.json, decoder=decode)
    place.applier = Applier(place.connection, place.settings, {"orders": TableTarget(mapper, table)})
    place.connection.execute("SET idle_in_transaction_session_timeout = '200ms'")
    place.apply(part(*(total(number, b"%d" % number, 1) for number in range(10))))
    assert len(place.rows()) == 10
    place.connection.close()


def test_a_lost_connection_makes_no_dead_record(place: Place, connection: psycopg.Connection[Any]) -> None:
    pid = place.connection.info.backend_pid
    connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    connection.commit()
    with pytest.raises(psycopg.OperationalError):
        place.apply(part(total(0, b"a", 1)))
    assert connection.execute("SELECT count(*) FROM thresher_capture_dead").fetchone() == (0,)


def test_an_error_that_no_record_caused_makes_no_dead_record(place: Place, connection: psycopg.Connection[Any]) -> None:
    connection.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    place.connection.execute("SET lock_timeout = '200ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        place.apply(part(total(0, b"a", 1)))
    place.connection.execute("SET statement_timeout = '100ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        place.apply(part(total(0, b"a", 1)))
    place.connection.execute("RESET statement_timeout")
    connection.execute("ALTER TABLE orders DROP COLUMN code")
    connection.commit()
    with pytest.raises(psycopg.errors.UndefinedColumn):
        place.apply(part(total(0, b"a", 1)))
    assert (place.reasons(), place.stored()) == ({}, 0)


def test_every_missing_object_is_reported_with_its_statement(dsn: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "CREATE TABLE orders (id text, total numeric, doc jsonb, code text GENERATED ALWAYS AS (id) STORED)"
    )
    settings = CaptureSettings(name="c", dsn=dsn, kafka={}, mappings=(ORDERS,))
    problems = "\n".join(schema_problems(connection, settings.tables, settings.mappings))
    assert "thresher capture schema create" in problems
    assert 'it has no column tags: ALTER TABLE "orders" ADD COLUMN "tags" text;' in problems
    assert 'ADD COLUMN IF NOT EXISTS "thresher_partition" INTEGER' in problems
    assert 'CREATE UNIQUE INDEX ON "orders" ("id");' in problems
    assert "column code is generated" in problems
    connection.execute("DROP TABLE orders")
    connection.execute(
        "CREATE TABLE orders (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY DEFERRABLE, total numeric, "
        "tags integer[], doc jsonb, code text)"
    )
    late = "\n".join(table_problems(connection, ORDERS))
    assert 'ALTER TABLE "orders" ALTER COLUMN "id" SET GENERATED BY DEFAULT;' in late
    assert 'CREATE UNIQUE INDEX ON "orders" ("id");' in late
    with pytest.raises(CaptureRefused, match="is not ready"):
        require_schema(connection, settings.tables, settings.mappings)
    connection.execute("DROP TABLE orders")
    (missing,) = table_problems(connection, ORDERS)
    assert missing.startswith('there is no such table; create it, with types of your choice: CREATE TABLE "orders"')
    connection.execute("CREATE TABLE orders (id text PRIMARY KEY, total numeric, tags int[], doc jsonb, code text)")
    create_schema(connection, settings.tables, settings.mappings)
    create_schema(connection, settings.tables, settings.mappings)
    assert schema_problems(connection, settings.tables, settings.mappings) == ()
    connection.execute("CREATE ROLE capture_reader")
    connection.execute("GRANT SELECT ON orders TO capture_reader")
    connection.execute("SET ROLE capture_reader")
    (rights,) = table_problems(connection, ORDERS)
    assert rights == 'rights are missing: GRANT INSERT, UPDATE, DELETE ON "orders" TO "capture_reader";'
    with pytest.raises(DatabaseRefused, match="'thresher capture schema print -c FILE --role ROLE'"), explained():
        connection.execute("DELETE FROM orders")
    connection.rollback()


def test_two_topics_for_one_table_are_refused_under_any_name(place: Place) -> None:
    other = dataclasses.replace(ORDERS, topic="others", table=TableName(table="orders", schema="public"))
    (problem,) = schema_problems(place.connection, place.settings.tables, (ORDERS, other))
    assert "orders, others: these topics share a table" in problem


def test_names_with_odd_characters_work(dsn: str) -> None:
    table = TableName(table='o "%s" {key}')
    mapping = TopicMapping(topic="odd", table=table, key=("i%d",), columns={"i%d": "$key", 'a"{table}%s': "a"})
    with psycopg.connect(session(dsn, "capture-test", SESSION, path=""), autocommit=True) as connection:
        connection.execute(f'CREATE TABLE {table} ("i%d" text PRIMARY KEY, "a""{{table}}%s" int)'.encode())
        settings = CaptureSettings(name="c", dsn=dsn, kafka={}, mappings=(mapping,))
        create_schema(connection, settings.tables, settings.mappings)
        StoredOffsets(connection, settings.tables, "c").begin(("odd", 0), StoredOffset("i", 0))
        applier = Applier(connection, settings, targets_of(connection, settings.mappings))
        offsets = itertools.count()
        for value in (b'{"a": 1}', b'{"a": 2}', None):
            offset = next(offsets)
            given = CapturedRecord("odd", 0, offset, 0, b"k", value)
            applier.apply([Part("odd", 0, offset, offset + 1, [given])], {"odd": "i"})
            found = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
            assert [row[1] for row in found] == ([] if value is None else [json.loads(value)["a"]])
