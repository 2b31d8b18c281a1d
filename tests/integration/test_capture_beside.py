"""Commands beside a capture: publish and wait, rewind, adopt, dead records. Batches are applied without Spark."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.capture.captured import PATIENCE_SECONDS, CapturedOrders
from tests.engine.only_shard import only_shard
from tests.processes import eventually
from thresher.capture import failing_topics, start_offsets
from thresher.capture.adopting import adopt
from thresher.capture.applying import Applier
from thresher.capture.positions import Part
from thresher.capture.problem import (
    CaptureRefused,
    CaptureTimeout,
    NotPublished,
    PublishUnknown,
    RecordDead,
    RecordsKeepFailing,
    RewindInterrupted,
)
from thresher.capture.publishing import EntityPublisher, Published
from thresher.capture.reader import TopicsReader
from thresher.capture.retrying import Outcome, retry
from thresher.capture.rewinding import rewind
from thresher.capture.settings import placed_settings
from thresher.capture.shard import Attempt, Source
from thresher.capture.start_offsets import facts_of, starts_of
from thresher.capture.store.offsets import StoredOffsets
from thresher.capture.targets import targets_of
from thresher.core.errors import InvalidInput
from thresher.db.postgres.sessions import connect_as_configured
from thresher.delivery.crash_points import CrashPoints
from thresher.devstack.stack import Stack
from thresher.kafka.partition_ends import PartitionEnds, partition_ends
from thresher.kafka.partition_watch import PositionLost
from thresher.outbox.message import Message


class Applying:
    """A shard's loop in the test's thread: reads the topic up to its end and applies the records."""

    def __init__(self, orders: CapturedOrders) -> None:
        self.orders, self.settings = orders, orders.settings
        self.connection = connect_as_configured(orders.dsn, "capture-test")
        self._applier: Applier | None = None
        self._topic_id = ""

    def go_on(self) -> None:
        """Read the topic up to its end, and apply the records."""
        self._run(self.apply)

    def read(self) -> list[Part]:
        """Read the topic up to its end, and apply nothing."""
        held: list[Part] = []
        self._run(held.extend)
        return held

    def apply(self, parts: list[Part]) -> None:
        settings = self.settings
        if self._applier is None:
            self._applier = Applier(self.connection, settings, targets_of(self.connection, settings.mappings))
        self._applier.apply(parts, {self.orders.topic: self._topic_id})

    def _run(self, take: Callable[[list[Part]], None]) -> None:
        orders, settings = self.orders, self.settings
        self._applier = None
        fact = facts_of(orders.admin, [orders.topic])[orders.topic]
        self._topic_id = fact.topic_id
        offsets = StoredOffsets(self.connection, settings.tables, settings.name)
        starts = starts_of(orders.admin, offsets, orders.topic, fact.topic_id, range(fact.partitions))
        with TopicsReader(settings.topics, settings.reader) as reader:
            for place, offset in starts.items():
                reader.assign(place, offset)
            size = orders.admin.topics(orders.topic)[0]
            deadline = time.monotonic() + PATIENCE_SECONDS
            first = sum(orders.firsts().values())
            while sum(reader.positions.values()) - first < size.records:
                assert time.monotonic() < deadline, (reader.positions, size)
                if parts := reader.poll(0.1, settings.batch_records):
                    take(parts)


@pytest.fixture
def orders(stack: Stack, dsn: str) -> CapturedOrders:
    return CapturedOrders(stack.kafka.bootstrap, dsn)


@pytest.fixture
def applying(orders: CapturedOrders) -> Iterator[Applying]:
    made = Applying(orders)
    yield made
    made.connection.close()


@pytest.fixture
def publisher(orders: CapturedOrders) -> Iterator[EntityPublisher]:
    with EntityPublisher({**orders.eyes, "log_level": 2}, orders.dsn, capture="shop") as made:
        yield made


def order(orders: CapturedOrders, total: Any = 1, key: str = "a") -> Message:
    return Message(topic=orders.topic, key=key, value=json.dumps({"total": total}), headers={"h": b"v"})


def test_two_readers_at_once_apply_each_record_once(orders: CapturedOrders) -> None:
    orders.keys["topics"] = {orders.topic: {"handler": "tests.capture.functions:count_orders"}}
    orders.keys["batch_records"] = 7
    both = [Applying(orders) for _ in range(2)]
    for _ in range(5):
        orders.publish(*((f"c{number % 5}", 1) for number in range(100)))
        threads = [threading.Thread(target=each.go_on) for each in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert orders.rows() == {f"c{number}": 100 for number in range(5)}
    for each in both:
        each.connection.close()


def test_records_read_by_a_stopped_capture_are_not_applied_again(orders: CapturedOrders, applying: Applying) -> None:
    orders.keys["topics"] = {orders.topic: {"handler": "tests.capture.functions:count_orders"}}
    applying.settings = orders.settings
    applying.go_on()
    orders.publish(*((f"c{number % 5}", 1) for number in range(50)))
    stopped = Applying(orders)
    held = stopped.read()
    applying.go_on()
    stopped.apply(held)
    assert orders.rows() == {f"c{number}": 10 for number in range(5)}
    assert sum(orders.stored().values()) == 50
    stopped.connection.close()


def test_publish_and_wait_returns_when_the_entity_is_readable(
    orders: CapturedOrders, applying: Applying, publisher: EntityPublisher
) -> None:
    applying.go_on()
    seen: list[tuple[Published, dict[str, int]]] = []
    thread = threading.Thread(
        target=lambda: seen.append((publisher.publish_and_wait(order(orders, 5), 30.0), orders.rows()))
    )
    thread.start()
    eventually(lambda: orders.admin.topics(orders.topic)[0].records == 1, PATIENCE_SECONDS)
    time.sleep(0.2)
    assert seen == []
    applying.go_on()
    thread.join(PATIENCE_SECONDS)
    ((published, rows),) = seen
    assert (published.topic, published.offset, rows) == (orders.topic, 0, {"a": 5})


def test_waiting_for_a_dead_record_raises_its_reason(
    orders: CapturedOrders, applying: Applying, publisher: EntityPublisher
) -> None:
    published = publisher.publish(order(orders, "much"))
    applying.go_on()
    with pytest.raises(RecordDead, match="invalid input syntax for type integer") as caught:
        publisher.wait(published, 5.0)
    assert caught.value.kind == "type"


def test_a_time_out_says_that_the_record_is_published(orders: CapturedOrders, publisher: EntityPublisher) -> None:
    with pytest.raises(CaptureTimeout, match="is published, but the capture shop has not applied it in time"):
        publisher.publish_and_wait(order(orders), 1.0)


def test_a_wait_ignores_offsets_of_a_deleted_topic(
    orders: CapturedOrders, applying: Applying, publisher: EntityPublisher
) -> None:
    orders.publish(*((f"o{number}", 1) for number in range(30)))
    applying.go_on()
    orders.make_anew()
    with EntityPublisher({**orders.eyes, "log_level": 2}, orders.dsn, capture="shop") as fresh:
        with pytest.raises(CaptureTimeout, match="was deleted and created again"):
            fresh.publish_and_wait(order(orders, 7), 3.0)
        adopt(orders.settings)
        applying.go_on()
        thread = threading.Thread(target=fresh.publish_and_wait, args=[order(orders, 8), 30.0])
        thread.start()
        eventually(lambda: orders.admin.topics(orders.topic)[0].records == 2, PATIENCE_SECONDS)
        applying.go_on()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert orders.rows()["a"] == 8


def test_a_wait_ends_in_time_despite_database_faults(
    orders: CapturedOrders, publisher: EntityPublisher, connection: psycopg.Connection[Any]
) -> None:
    published = publisher.publish(order(orders))
    with pytest.raises(CaptureTimeout, match="has no stored offset for this partition"):
        publisher.wait(published, 0.1)
    connection.execute("LOCK TABLE thresher_capture_offsets IN ACCESS EXCLUSIVE MODE")
    began = time.monotonic()
    with pytest.raises(CaptureTimeout, match="did not answer"):
        publisher.wait(published, 0.5)
    with pytest.raises(NotPublished, match="did not answer"):
        publisher.publish_and_wait(order(orders), 0.5)
    assert time.monotonic() - began < 10
    connection.execute("DROP TABLE thresher_capture_offsets")
    connection.commit()
    with pytest.raises(NotPublished, match="thresher_capture_offsets"):
        publisher.publish_and_wait(order(orders), 5.0)
    assert orders.admin.topics(orders.topic)[0].records == 1


def test_a_failed_publish_is_reported(orders: CapturedOrders, publisher: EntityPublisher) -> None:
    with pytest.raises(NotPublished):
        publisher.publish(Message(topic=orders.topic, key="a", value=b"x" * 5_000_000), 10.0)
    with EntityPublisher({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, orders.dsn, capture="shop") as nowhere:
        with pytest.raises(PublishUnknown, match="may or may not be in"):
            nowhere.publish(order(orders), 0.5)
        nowhere._producer.purge()
    with pytest.raises(InvalidInput):
        EntityPublisher({"no.such": 1}, orders.dsn, capture="shop")


def test_a_wait_survives_a_lost_connection(
    orders: CapturedOrders, applying: Applying, publisher: EntityPublisher, connection: psycopg.Connection[Any]
) -> None:
    published = publisher.publish(order(orders))
    applying.go_on()
    publisher.wait(published)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'capture-wait%'"
    connection.execute(end)
    publisher.wait(published)


def test_rewind_repairs_wrong_rows_and_leaves_the_others(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(*((f"o{number}", 1) for number in range(9)))
    orders.publish(("o1", 2), ("o2", 2), ("o3", None), ("o4", b"{"))
    applying.go_on()
    orders.publish(("o5", 99))
    before = orders.query("SELECT id, xmin::text FROM orders WHERE id NOT IN ('o1', 'o2') ORDER BY id")
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders WHERE id = 'o1'")
        connection.execute("UPDATE orders SET total = 1, thresher_offset = thresher_offset - 1 WHERE id = 'o2'")
        connection.execute(
            "INSERT INTO orders (id, total, thresher_partition, thresher_offset, thresher_timestamp) "
            "VALUES ('o3', 1, 0, 0, 0)"
        )
    done = rewind(orders.settings)
    wanted = {f"o{number}": 1 for number in range(9) if number != 3} | {"o1": 2, "o2": 2}
    assert orders.rows() == wanted, "o5 is beyond the stored offset, and o3 was deleted"
    assert orders.query("SELECT id, xmin::text FROM orders WHERE id NOT IN ('o1', 'o2') ORDER BY id") == before
    assert (done.records, done.keys, done.failed) == (13, 9, 0)


def test_rewind_shows_no_reader_an_older_state(orders: CapturedOrders, applying: Applying) -> None:
    for total in range(1, 30):
        orders.publish(*((f"o{number}", total) for number in range(20)))
    orders.publish(("o0", None))
    applying.go_on()
    # Small batches: no batch holds all records of a key.
    orders.keys["batch_records"] = 50
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
        connection.execute(
            "CREATE TABLE seen AS SELECT id, total FROM orders; "
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS "
            "$$BEGIN INSERT INTO seen VALUES (NEW.id, NEW.total); RETURN NEW; END$$; "
            "CREATE TRIGGER t AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()"
        )
    rewind(orders.settings)
    assert orders.rows() == {f"o{number}": 29 for number in range(1, 20)}
    assert {total for _, total in orders.query("SELECT id, total FROM seen")} == {29}
    assert len(orders.query("SELECT id FROM seen")) == 19


def test_rewind_takes_the_latest_of_several_partitions(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 1), ("b", 1), partition=0, timestamp=1_000)
    orders.publish(("a", 2), partition=1, timestamp=3_000)
    orders.publish(("b", None), partition=2, timestamp=2_000)
    orders.publish(("a", 3), partition=2, timestamp=2_000)
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
        # A late record of an older partition may have left the row so.
        connection.execute("INSERT INTO orders VALUES ('b', 1, null, 0, 1, 1000)")
    rewind(orders.settings)
    assert orders.rows() == {"a": 2}


def test_rewind_to_a_time_leaves_older_records_alone(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("old", 1), timestamp=1_000_000)
    orders.publish(("new", 1), timestamp=2_000_000)
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
    assert rewind(orders.settings, 1_500_000).keys == 1
    assert orders.rows() == {"new": 1}


def test_a_second_rewind_applies_a_new_mapping(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", b'{"total": 1, "other": "x"}'))
    applying.go_on()
    orders.keys["topics"][orders.topic]["columns"] = {"id": "$key", "total": "total", "note": "other"}
    rewind(orders.settings)
    assert orders.query("SELECT note FROM orders") == [(None,)]
    rewind(orders.settings, again=True)
    assert orders.query("SELECT note FROM orders") == [("x",)]


def test_capture_waits_while_its_topics_are_read_again(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 1), ("b", 1))
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
    orders.publish(("a", None))
    threads: list[threading.Thread] = []

    def told(_: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=applying.go_on))
            threads[0].start()
            waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
            eventually(lambda: orders.query(waits) == [(True,)], PATIENCE_SECONDS)

    rewind(orders.settings, told=told)
    threads[0].join(PATIENCE_SECONDS)
    assert orders.rows() == {"b": 1}, "the tombstone was applied after the rewind restored the row"


def test_a_rewind_that_lost_its_lock_applies_nothing_more(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 1), ("b", 1))
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
    orders.publish(("a", None))
    ended: list[bool] = []

    def told(_: Any) -> None:
        if not ended:
            ended.append(True)
            orders.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'capture-rewind%' AND state = 'idle in transaction'"
            )
            applying.go_on()

    with pytest.raises(RewindInterrupted, match="continued while"):
        rewind(orders.settings, told=told)
    assert orders.rows() == {}, "a was deleted, and must stay deleted"


def test_a_partition_that_is_added_waits_for_a_rewind(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 1), ("b", 1), timestamp=1_000)
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
    orders.widen(4)
    orders.publish(("a", None), partition=3, timestamp=2_000)
    threads: list[threading.Thread] = []

    def told(_: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=applying.go_on))
            threads[0].start()
            waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
            eventually(lambda: orders.query(waits) == [(True,)] or not threads[0].is_alive(), PATIENCE_SECONDS)

    rewind(orders.settings, told=told)
    threads[0].join(PATIENCE_SECONDS)
    assert orders.rows() == {"b": 1}, "the tombstone was applied after the rewind restored the row"


def test_a_rewind_makes_no_dead_record(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("k", 1), ("k", 2), partition=0)
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
        connection.execute("ALTER TABLE orders ADD CONSTRAINT low CHECK (total < 2)")
    done = rewind(orders.settings)
    assert (done.failed, orders.dead(), orders.rows()) == (1, [], {})
    assert done.failures[0].startswith(f"{orders.topic}/0/1: new row for relation")
    rewind(orders.settings)
    assert orders.rows() == {}, "readers never see an older state"
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders DROP CONSTRAINT low")
    rewind(orders.settings)
    assert orders.rows() == {"k": 2}


def test_a_rewind_with_a_wrong_mapping_ends(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(*((f"o{number}", 1) for number in range(9)))
    applying.go_on()
    orders.keys["topics"][orders.topic]["columns"] = {"id": "$key", "note": "note"}
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM orders")
    orders.keys["most_dead_in_a_row"] = 5
    with pytest.raises(RecordsKeepFailing, match=r"records of .* in a row cannot be applied"):
        rewind(orders.settings)
    assert orders.dead() == []


def test_a_topic_that_keeps_failing_waits_and_others_go_on(
    orders: CapturedOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_topics, "RETRY_SECONDS", 2.0)
    notes = f"{orders.topic}.notes"
    orders.admin.create_topic(notes, partitions=1)
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders ADD CONSTRAINT low CHECK (total < 10)")
        connection.execute(
            "CREATE TABLE notes (a int PRIMARY KEY, thresher_partition int, thresher_offset bigint, "
            "thresher_timestamp bigint)"
        )
    orders.keys["topics"][notes] = {"table": "notes", "key": ["a"], "columns": ["a"]}
    orders.keys["most_dead_in_a_row"] = 5
    told: list[Mapping[str, str]] = []

    def noted(name: str, fields: Mapping[str, Any]) -> None:
        if name == "failing":
            told.append(fields["topics"])

    with ExitStack() as resources:
        shard = only_shard(resources, on_event=noted)
        attempt = Attempt(shard, placed_settings(orders.settings, "test"), "term", CrashPoints(None, 0))
        attempt.open()

        def come_to_pass(done: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not done():
                assert time.monotonic() < deadline, (told, orders.rows(), orders.stored())
                reader = shard.share(Source).reader
                assert reader is not None
                attempt.take(reader.poll(0.1, 1_000))

        orders.publish(*((f"o{number}", 100) for number in range(30)))
        come_to_pass(lambda: bool(told))
        assert "in a row cannot be applied" in told[0][orders.topic]
        orders.producer.produce(notes, b'{"a": 4}')
        orders.producer.flush()
        come_to_pass(lambda: orders.query("SELECT a FROM notes") == [(4,)])
        assert orders.rows() == {}
        before = len(orders.dead())
        with psycopg.connect(orders.dsn) as connection:
            connection.execute("ALTER TABLE orders DROP CONSTRAINT low")
        come_to_pass(lambda: len(orders.rows()) + len(orders.dead()) == 30 and told[-1] == {})
        assert before <= len(orders.dead()) <= 10, "none beyond the bound, for each try"


def test_a_capture_whose_every_topic_fails_ends(orders: CapturedOrders) -> None:
    failing = failing_topics.FailingTopics(["a", "b"])
    failing.fail(RecordsKeepFailing("a", "why"), 0.0)
    failing.fail(RecordsKeepFailing("a", "why again"), 1.0)
    assert failing.waits("a")
    with pytest.raises(RecordsKeepFailing, match="why: b"):
        failing.fail(RecordsKeepFailing("b", "why: b"), 2.0)


def test_a_reason_that_quotes_a_large_value_fits_into_an_event() -> None:
    names = [f"{number}".rjust(249, "t") for number in range(100)]
    failing = failing_topics.FailingTopics([*names, "good"])
    for name in names:
        failing.fail(RecordsKeepFailing(name, f"{name}: {'é' * 1_000_000}"), 0.0)
    with ExitStack() as resources:
        told: list[Mapping[str, Any]] = []
        shard = only_shard(resources, on_event=lambda _, fields: told.append(fields))
        shard.event("failing", topics=failing.reasons())
    assert told[0]["topics"].keys() == set(names[:20])
    assert all(failing.waits(name) for name in names)


def test_a_rewind_without_offsets_is_refused(orders: CapturedOrders) -> None:
    with pytest.raises(CaptureRefused, match="was never captured by shop"):
        rewind(orders.settings)


def test_adopt_goes_on_behind_deleted_records(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(*((f"o{number}", 1) for number in range(4)), partition=0)
    applying.go_on()
    assert adopt(orders.settings) == []
    orders.publish(*((f"o{number}", 2) for number in range(4)), partition=0)
    orders.remove_before(0, 6)
    with pytest.raises(PositionLost, match="begins at 6, and was captured up to 4"):
        applying.go_on()
    (changed,) = adopt(orders.settings)
    assert (changed.place, changed.before, changed.now) == ((orders.topic, 0), 4, 6)
    applying.go_on()
    assert orders.rows() == {"o0": 1, "o1": 1, "o2": 2, "o3": 2}


def test_adopt_begins_a_recreated_topic(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 1), ("b", 1), ("a", 2), partition=0)
    orders.publish(("c", 1), partition=2)
    applying.go_on()
    orders.make_anew(partitions=2)
    orders.publish(("a", 3), partition=0)
    orders.publish(("c", 3), partition=1)
    with pytest.raises(PositionLost, match="created again"):
        applying.go_on()
    with pytest.raises(PositionLost):
        rewind(orders.settings)
    assert [each.now for each in adopt(orders.settings)] == [0, 0, None]
    applying.go_on()
    assert orders.rows() == {"a": 3, "b": 1, "c": 3}, "guard columns of the deleted topic no longer count"


def test_a_removed_offset_ends_capture_until_adopted(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 1), partition=1)
    applying.go_on()
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("DELETE FROM thresher_capture_offsets WHERE kafka_partition = 1")
    with pytest.raises(PositionLost, match=r"the stored offset of partition 1 .* was removed"):
        applying.go_on()
    (changed,) = adopt(orders.settings)
    assert (changed.place, changed.before, changed.now) == ((orders.topic, 1), None, 0)
    applying.go_on()


def test_adopt_asks_again_where_a_topic_seems_too_short(
    orders: CapturedOrders, applying: Applying, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.publish(("a", 1), ("a", 2), partition=0)
    applying.go_on()
    answers = [PartitionEnds(first=0, stable=1, high=1)]

    def ends(client: Any, topic: str, partitions: Any) -> Mapping[int, PartitionEnds]:
        found = dict(partition_ends(client, topic, partitions))
        return found | {0: answers.pop()} if answers else found

    monkeypatch.setattr(start_offsets, "partition_ends", ends)
    assert adopt(orders.settings) == []


def test_a_dead_record_behind_another_dead_one_is_applied(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("k", b'{"note": "x"}'), ("k", b'{"total": 5, "note": "y"}'), partition=0)
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders ADD CONSTRAINT no CHECK (note <> 'y')")
    orders.keys["batch_records"] = 1
    applying.settings = orders.settings
    applying.go_on()
    first, second = (number for (number,) in orders.query("SELECT id FROM thresher_capture_dead ORDER BY kafka_offset"))
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders ALTER COLUMN total DROP NOT NULL")
    assert retry(orders.settings, [first]) == {first: Outcome.APPLIED}
    assert retry(orders.settings, [second]) == {second: Outcome.FAILED}
    assert orders.rows() == {"k": None}


def test_a_dead_record_removed_by_retention_is_reported(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("k", b'{"note": "x"}'), ("a", 1), ("b", 1), partition=0)
    applying.go_on()
    orders.remove_before(0, 2)
    ((number,),) = orders.query("SELECT id FROM thresher_capture_dead")
    with pytest.raises(CaptureRefused, match=f"dead drop {number}"):
        retry(orders.settings, [number])


def test_a_dead_record_can_be_applied_later(orders: CapturedOrders, applying: Applying) -> None:
    orders.publish(("a", 5), ("a", b'{"note": "x"}'), ("b", b'{"note": "x"}'), ("c", b"{"), partition=0)
    applying.go_on()
    orders.publish(("b", None), partition=0)
    applying.go_on()
    assert orders.rows() == {"a": 5}
    numbers = [number for (number,) in orders.query("SELECT id FROM thresher_capture_dead ORDER BY kafka_offset")]
    assert retry(orders.settings, numbers) == dict(
        zip(numbers, (Outcome.FAILED, Outcome.TOO_LATE, Outcome.FAILED), strict=True)
    )
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders ALTER COLUMN total DROP NOT NULL")
    assert retry(orders.settings, numbers[:1]) == {numbers[0]: Outcome.APPLIED}
    assert orders.rows() == {"a": None}
    assert orders.dead() == [(b"c", "malformed")]
