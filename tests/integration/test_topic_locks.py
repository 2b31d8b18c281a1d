"""Relays that share an outbox by topic locks, on real servers: workers in threads, without Spark."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest
from confluent_kafka import Message as Record

from tests.processes import eventually
from tests.relay.locked_place import HOOK, LockedPlace, Refusing, seen, standing_at
from tests.relay.relaying import taken_over, tried_again
from thresher.db.names import TableName
from thresher.db.outbox_store import DeadFate, Fates, Wanted
from thresher.db.postgres.topic_locks import PostgresTopicLocks, locks_table
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.shape import bucket_of
from thresher.db.topic_locks import LockLost, LockState, LockTerms
from thresher.delivery.crash_points import CrashPoint
from thresher.delivery.names import progress_topic, sessions, transactional_id
from thresher.delivery.problem import ForeignProgress
from thresher.devstack.stack import Stack
from thresher.kafka.partitioners import crc32_partition
from thresher.kafka.transactional import TransactionalProducer
from thresher.outbox import Message, Shape
from thresher.relay.problem import OtherCoordination, OtherSplit
from thresher.relay.settings import Settings, Settling, ShardAssignment
from thresher.relay.store import store_of
from thresher.relay.topic_lock import turn
from thresher.relay.topic_lock.backend import DbBackend
from thresher.relay.topic_lock.joining import join
from thresher.relay.topic_lock.split import change_split

Places = Callable[..., LockedPlace]


@pytest.fixture
def place(stack: Stack, dsn: str, topic_prefix: str) -> Places:
    def make(**options: Any) -> LockedPlace:
        return LockedPlace(stack, dsn, topic_prefix, **options)

    return make


def numbers(records: Sequence[Record]) -> list[int]:
    return [int(record.value() or b"") for record in records]


def require_order(records: Sequence[Record]) -> None:
    """Check that the numbers in the values rise within each topic and key."""
    for stream in {(record.topic(), record.key()) for record in records}:
        own = numbers([record for record in records if (record.topic(), record.key()) == stream])
        assert own == sorted(own), stream


def joined(settings: Settings) -> ShardAssignment:
    """Join as a service does."""
    return tried_again(lambda: join(settings))


def ended(backend: DbBackend, seconds: float = 60.0) -> BaseException | None:
    """Wait for the end of a backend, and return its error, which the backend then does not raise."""
    eventually(lambda: not backend.running, seconds)
    error, backend.error = backend.error, None
    return error


def test_rows_of_all_topics_arrive_once_and_in_order(place: Places) -> None:
    at = place()
    topics = at.topics(5)
    at.stash(*(Message(topic=topics[n % 5], key=f"k{n % 7}", value=str(n)) for n in range(1_000)))
    with at.backend() as backend:
        at.until_sent(backend)
    found = at.read(1_000, *topics)
    assert sorted(numbers(found)) == list(range(1_000))
    require_order(found)
    assert all(not lock["locked_by"] and not lock["error"] for lock in at.locks().values())
    assert all(lock["last_processed_at"] for lock in at.locks().values())


def test_a_worker_keeps_its_producer_between_its_own_turns(place: Places) -> None:
    at = place()
    with at.backend(threads=1, hook=HOOK) as backend:
        for n in range(5):
            at.stash(Message(topic=at.topic, key="k", value=str(n)))
            at.until_sent(backend)
        assert seen(CrashPoint.RECOVERY_FENCED) == 1
        with at.locking() as locks:
            lock = at.take(locks, at.topic)
            assert lock is not None
            locks.release(lock)
        at.stash(Message(topic=at.topic, key="k", value="5"))
        at.until_sent(backend)
        assert seen(CrashPoint.RECOVERY_FENCED) == 2
    assert numbers(at.read(6)) == list(range(6))


def test_an_errored_topic_is_paused_and_others_are_sent(place: Places) -> None:
    at = place()
    missing = f"{at.prefix}missing"
    at.stash(Message(topic=missing, key="k", value="0"), Message(topic=at.topic, key="k", value="1"))
    with at.backend(limits={"grace_seconds": 3600.0}) as backend:
        at.until(backend, lambda: at.locks().get(missing, {}).get("error"))
        resting = at.locks()[missing]
        assert resting["locked_by"] is None
        assert resting["retries"] == 1
        assert resting["reason"]
        at.stash(Message(topic=at.topic, key="k", value="2"))
        at.until(backend, lambda: at.pending() == 1)
        # The topic is paused: no worker has taken its lock since.
        assert at.locks()[missing]["token"] == resting["token"]
    assert numbers(at.read(2)) == [1, 2]


@pytest.mark.parametrize(
    "options", [{}, {"shape": Shape.DEIMOS, "table": "kafka_messages"}], ids=["thresher", "deimos"]
)
def test_rows_of_a_missing_topic_die_after_the_shared_grace(place: Places, options: dict[str, Any]) -> None:
    at = place(**options)
    missing = f"{at.prefix}missing"
    at.stash(Message(topic=missing, key="k", value="0"))
    with at.backend(limits={"grace_seconds": 1.0}, locking={"lock_seconds": 1.0}) as backend:
        at.until_sent(backend)
        at.until(backend, lambda: not at.locks()[missing]["error"] and not at.locks()[missing]["locked_by"])
    ((_, kind, reason, *_),) = at.dead()
    assert kind == "no-topic"
    assert "for 1 s" in reason
    assert at.locks()[missing]["retries"] == 0
    assert at.locks()[missing]["slot"] is None


def test_a_topic_that_refuses_the_present_time_waits_alone(place: Places) -> None:
    at = place()
    strict = f"{at.prefix}strict"
    at.admin.create_topic(strict, config={"message.timestamp.before.max.ms": "0"})
    at.stash(Message(topic=strict, key="k", value="0"), Message(topic=at.topic, key="k", value="0"))
    with at.backend(threads=1) as backend:
        at.until(backend, lambda: at.pending() == 1)
        at.until(backend, lambda: "message.timestamp" in (at.locks()[strict]["reason"] or ""))
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.until(backend, lambda: at.pending() == 1)
    assert numbers(at.read(2)) == [0, 1]
    assert at.dead() == []


def test_missing_names_get_no_slot_and_delay_no_topic(place: Places) -> None:
    at = place()
    missing = [f"{at.prefix}missing{number}" for number in range(300)]
    with at.backend(limits={"grace_seconds": 3600.0}) as backend:
        at.stash(*(Message(topic=name, key="k", value="0") for name in missing))
        at.until(backend, lambda: len(at.locks()) == 300)
        for n in range(3):
            began = time.monotonic()
            at.stash(Message(topic=at.topic, key="k", value=str(n)))
            at.until(backend, lambda: at.pending() == 300)
            assert time.monotonic() - began < 20.0
        assert all(at.locks()[name]["slot"] is None for name in missing)
        (progress,) = at.admin.topics(progress_topic(at.settings().name))
        assert progress.partitions < 20
        at.until(backend, lambda: "250 more topics" in backend.alarms)
        assert len(backend.alarms) == 51
        # A topic that comes is sent to at once: its note is no rest.
        at.admin.create_topic(missing[7])
        at.until(backend, lambda: at.pending() == 299)
        assert at.locks()[missing[7]]["slot"] is not None
        assert at.locks()[missing[7]]["missing_at"] is None
        assert backend.counts.get("errored_turns", 0) == 0
    assert numbers(at.read(3)) == [0, 1, 2]
    assert numbers(at.read(1, missing[7])) == [0]


def test_the_note_of_a_process_that_ended_shortens_no_grace(place: Places) -> None:
    at = place()
    missing = f"{at.prefix}missing"
    joined(at.locked_settings())
    ((term,),) = at.sql("SELECT term::text FROM thresher_relay")
    with at.locking() as locks:
        locks.note({missing: "why"}, LockTerms(owner="test", relay=at.settings().name, term=term, seconds=60.0))
    at.sql(f"UPDATE {locks_table(at.table, at.shape)} SET missing_at = missing_at - interval '1 day'")
    noted = at.locks()[missing]
    at.stash(Message(topic=at.topic, key="k", value="0"))
    with at.backend(limits={"grace_seconds": 3600.0}) as backend:
        at.until_sent(backend)
        at.stash(Message(topic=missing, key="k", value="0"))
        at.until(backend, lambda: at.locks()[missing]["missing_at"] not in {None, noted["missing_at"]} or at.dead())
    assert at.dead() == []
    assert at.locks()[missing]["token"] > noted["token"], "whoever knows the old note sets no row aside"


def test_no_row_of_a_topic_with_a_lock_is_set_aside_by_a_note(place: Places) -> None:
    at = place()
    missing = [f"{at.prefix}missing{number}" for number in range(3)]
    at.stash(*(Message(topic=name, key="k", value="0") for name in missing))
    joined(at.locked_settings())
    ((term,),) = at.sql("SELECT term::text FROM thresher_relay")
    terms = LockTerms(owner="test", relay=at.settings().name, term=term, seconds=60.0)
    wanted = Wanted(buckets=range(64), rows=10, batch_bytes=10_000, largest_bytes=10_000)
    with at.locking() as locks:

        def set_aside(topic: str, terms: LockTerms = terms) -> int | None:
            (row,) = locks.rows_of([topic], wanted)
            time_us = int(row[1].timestamp() * 1_000_000)
            fates = Fates(ids=(), create_times=(), dead=[DeadFate(row[0], time_us, "no-topic", "why", 1, False)])
            return locks.set_aside({topic: notes[topic]}, fates, terms)

        locks.note(dict.fromkeys(missing, "why"), terms)
        notes = {each.topic: each.note or 0 for each in locks.pending(60.0)}
        assert len(locks.rows_of(missing, wanted)) == 3
        # Another process has found the topic meanwhile, and may have sent the row.
        locks.register(missing[0], 1)
        assert set_aside(missing[0]) is None
        assert set_aside(missing[1], replace(terms, term=str(uuid.uuid4()))) is None
        assert set_aside(missing[1]) == 1
        locks.reset()
        assert set_aside(missing[2]) is None
    assert len(at.dead()) == 1
    assert at.pending() == 2


def test_a_past_error_shortens_no_later_grace(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    faulty, Refusing.left = "tests.relay.locked_place:refusing_first", 2
    limits = {"grace_seconds": 2.0}
    with at.backend(threads=1, producer_factory=faulty, limits=limits, locking={"lock_seconds": 2.0}) as backend:
        at.until(backend, lambda: at.locks().get(at.topic, {}).get("error"))
        # While the topic is paused for another reason.
        at.admin.delete_topics([at.topic])
        at.until(backend, lambda: at.locks()[at.topic]["retries"] > 1 or at.pending() == 0)
        assert at.dead() == []
        at.admin.create_topic(at.topic, partitions=3)
        at.until_sent(backend)
    assert at.dead() == []


def test_poison_is_found_by_workers_that_take_turns(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(20)))
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', repeat('x', 2000000)::bytea)",
        at.topic,
    )
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(20, 40)))
    with at.backend(threads=1) as one, at.backend(threads=2) as other:
        at.until_sent(one)
        assert one.counts.get("dead", 0) + other.counts.get("dead", 0) == 1
    assert numbers(at.read(40)) == list(range(40))


def test_a_row_without_its_partition_dies_across_worker_turns(place: Places) -> None:
    at = place()
    at.stash(
        Message(topic=at.topic, key="k", value="1", partition=99),
        *(Message(topic=at.topic, key="other", value=str(n)) for n in range(5)),
    )
    with (
        at.backend(threads=1, limits={"grace_seconds": 3.0}) as one,
        at.backend(threads=1, limits={"grace_seconds": 3.0}),
    ):
        at.until_sent(one)
    ((_, kind, *_),) = at.dead()
    assert kind == "no-partition"
    assert len(at.read(5)) == 5
    assert at.locks()[at.topic]["waiting_at"] is None


def test_an_alarm_ends_once_the_row_is_set_aside(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1", partition=99))
    with (
        at.backend(threads=1, limits={"grace_seconds": 3.0}) as one,
        at.backend(threads=1, limits={"grace_seconds": 3.0}) as other,
    ):
        at.until(one, lambda: at.topic in one.alarms or at.topic in other.alarms)
        at.until_sent(one)
        at.until(one, lambda: not one.alarms and not other.alarms)
    assert len(at.dead()) == 1


def test_a_backend_that_ends_says_so(place: Places, caplog: pytest.LogCaptureFixture) -> None:
    at = place()
    at.sql("DROP TABLE outbox")
    backend = DbBackend(at.locked_settings(), threads=1)
    backend.start()
    eventually(lambda: not backend.running, 60.0)
    assert "outbox" in backend.alarms["(relay)"]
    (told,) = [each for each in caplog.records if each.levelname == "CRITICAL"]
    assert "sends nothing" in told.getMessage()
    with pytest.raises(DatabaseRefused):
        backend.wait()


def test_more_topics_than_producers_are_kept_are_sent(place: Places) -> None:
    at = place()
    topics = at.topics(20)
    # A rest of `lock_seconds` would be longer than the test.
    with at.backend(threads=3, locking={"lock_seconds": 600.0}) as backend:
        at.stash(*(Message(topic=topic, key="k", value="1") for topic in topics))
        at.until_sent(backend)
    assert len(at.read(20, *topics)) == 20


def test_a_lock_keeps_since_when_and_up_to_which_row_rows_wait(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)

        def waits(first: int, last: int) -> tuple[int, Any]:
            lock = at.take(locks, at.topic)
            assert lock is not None
            locks.release(lock, waiting=(first, last))
            kept = at.locks()[at.topic]
            return kept["waiting_id"], kept["waiting_at"]

        last, since = waits(5, 7)
        assert last == 7
        # Row 8 waits too, but not since then.
        assert waits(7, 8) == (7, since)
        found = at.take(locks, at.topic)
        assert found is not None
        assert found.waiting_id == 7
        locks.release(found, waiting=(8, 9))
        kept = at.locks()[at.topic]
        assert kept["waiting_id"] == 9
        assert kept["waiting_at"] > since
        found = at.take(locks, at.topic)
        assert found is not None
        locks.release(found)
        assert (at.locks()[at.topic]["waiting_id"], at.locks()[at.topic]["waiting_at"]) == (None, None)


def test_a_recorded_split_is_not_overwritten_by_stale_workers(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        assert locks.register(at.topic, 4) == 4
        before = at.locks()
        assert locks.register(at.topic, 1) == 4
        assert at.locks() == before
        assert at.take(locks, at.topic) is None


def test_a_lock_of_the_previous_split_cannot_be_taken(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        lock = at.take(locks, at.topic)
        assert lock is not None
        locks.split(at.topic, 4, [lock])
        assert at.take(locks, at.topic) is None


def test_rows_without_a_topic_name_are_dead_alone(place: Places) -> None:
    at = place()
    odd = [f"{at.topic}#0", f"!{at.topic}", "not a topic", "", "..", "x" * 249]
    at.stash(*(Message(topic=at.topic, key=f"k{n % 9}", value=str(n)) for n in range(50)))
    for topic in odd:
        at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', 'v')", topic)
    split = {"split_topics": {at.topic: 2}}
    with at.backend(threads=2, locking=split, limits={"grace_seconds": 0.0}) as backend:
        at.until_sent(backend)
    assert sorted(numbers(at.read(50))) == list(range(50))
    assert len(at.dead()) == len(odd)


def test_a_name_with_a_percent_sign_is_a_name(place: Places) -> None:
    at = place(table="out%box")
    at.stash(Message(topic=at.topic, key="k", value="1"))
    with at.backend(threads=1, outbox=at.table) as backend:
        at.until_sent(backend)
        with closing(store_of(at.locked_settings()).session("tests", locate=True)) as session:
            assert session.topic_locks().figures(5) == []
    assert numbers(at.read(1)) == [1]


def test_a_lock_is_renewed_within_a_long_batch(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    with (
        standing_at(CrashPoint.BEFORE_BEGIN) as hold,
        at.backend(threads=1, hook=HOOK, locking={"lock_seconds": 2.0}) as backend,
    ):
        assert hold.arrived.wait(60)
        taken = at.locks()[at.topic]["locked_at"]
        time.sleep(1.0)
        with standing_at(CrashPoint.BEFORE_COMMIT) as later:
            hold.go.set()
            assert later.arrived.wait(60)
            # No batch has ended yet.
            assert at.pending() == 10
            assert at.locks()[at.topic]["locked_at"] > taken
        at.until_sent(backend)


def test_processes_that_join_together_form_one_group(place: Places) -> None:
    at = place()
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: joined(at.locked_settings()), range(6)))
        # A slow founder may replace a group that others have joined already: these find that out, and join again.
        again = list(pool.map(lambda _: joined(at.locked_settings()), range(6)))
    ((term,),) = at.sql("SELECT term::text FROM thresher_relay WHERE settled_on IS NOT NULL")
    terms = {assignment.term for assignment in found}
    assert term in terms
    assert {assignment.term for assignment in again} == {term}
    # A member of a replaced group takes no lock.
    with at.locking() as locks:
        locks.register(at.topic, 1)
        for old in terms - {term}:
            stale = LockTerms(owner="stale", relay=at.settings().name, term=old, seconds=60.0)
            assert locks.acquire(LockState(topic=at.topic), stale) is None


def test_a_founder_that_died_midway_is_replaced(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    # As a founder that was killed after it had written its term.
    at.sql("UPDATE thresher_relay SET term = gen_random_uuid(), term_time = now(), settled_on = NULL")
    at.stash(Message(topic=at.topic, key="k", value="1"))
    with at.backend(threads=1) as backend:
        at.until_sent(backend)


def test_founding_frees_all_locks_and_raises_their_tokens(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        lock = at.take(locks, at.topic)
        assert lock is not None
        at.sql("TRUNCATE outbox")
        joined(at.locked_settings())
        with pytest.raises(LockLost):
            locks.renew(lock)
        assert at.locks()[at.topic]["locked_by"] is None


def test_a_topic_that_never_drains_leaves_others_their_turn(place: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "_TURN_SECONDS", 0.2)
    at = place()
    first, second = at.topics(2)
    with at.backend(threads=1, limits={"batch_rows": 1}) as backend:
        at.stash(*(Message(topic=first, key="k", value=str(n)) for n in range(3_000)))
        at.until(backend, lambda: at.locks().get(first, {}).get("locked_by"))
        at.stash(Message(topic=second, key="k", value="0"))
        at.until(backend, lambda: not at.sql("SELECT 1 FROM outbox WHERE kafka_topic = %s", second))
        assert at.pending() > 0


@pytest.mark.parametrize("point", [CrashPoint.FLUSHED, CrashPoint.COMMITTED, CrashPoint.SETTLING])
def test_a_worker_whose_lock_was_taken_changes_nothing(place: Places, point: CrashPoint) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    with standing_at(point) as hold, at.backend(threads=1, hook=HOOK) as slow:
        assert hold.arrived.wait(60)
        # The worker's lock expires, and another process takes it.
        at.sql("UPDATE outbox_lock SET locked_at = locked_at - interval '2 minutes' WHERE locked_by IS NOT NULL")
        if point is CrashPoint.SETTLING:
            # The worker's transaction locks the row of the topic lock until its session ends.
            at.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'thresher/%'")
        with at.backend(threads=1) as quick:
            at.until_sent(quick)
            assert quick.counts.get("recovered", 0) == (0 if point is CrashPoint.FLUSHED else 10)
            token = at.locks()[at.topic]["token"]
            hold.go.set()
            if point is not CrashPoint.SETTLING:
                eventually(lambda: slow.counts.get("locks_lost"), 60)
            assert at.locks()[at.topic]["token"] == token
            at.stash(Message(topic=at.topic, key="k", value="10"))
            at.until_sent(quick)
    assert numbers(at.read(11)) == list(range(11))


def test_a_producer_fenced_too_late_restarts_its_turn(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    settings = at.locked_settings()
    with standing_at(CrashPoint.FLUSHED) as hold, at.backend(threads=1, hook=HOOK) as backend:
        assert hold.arrived.wait(60)
        # As a process that lost the lock and does not know it yet.
        late = TransactionalProducer(transactional_id(settings.name, at.locks()[at.topic]["slot"]), settings.kafka)
        late.init(progress_topic(settings.name))
        late.discard()
        hold.go.set()
        at.until_sent(backend)
        assert not at.locks()[at.topic]["error"]
    assert numbers(at.read(10)) == list(range(10))


def test_a_lock_is_not_taken_under_an_ended_term(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        at.sql("UPDATE thresher_relay SET term = gen_random_uuid()")
        lock = at.take(locks, at.topic)
        assert lock is not None
        locks.release(lock)
        at.sql("UPDATE thresher_relay SET term = gen_random_uuid()")
    with at.backend(threads=1) as backend:
        # A worker of an older term finds no lock, and joins again.
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.until_sent(backend)
        at.sql("UPDATE thresher_relay SET term = gen_random_uuid(), settled_on = NULL")
        at.stash(Message(topic=at.topic, key="k", value="2"))
        at.until_sent(backend)
    assert numbers(at.read(2)) == [1, 2]


def test_no_lock_is_taken_under_another_term(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        terms = LockTerms(owner="me", relay=at.settings().name, term=str(uuid.uuid4()), seconds=60.0)
        assert locks.acquire(LockState(topic=at.topic), terms) is None
        assert at.take(locks, at.topic) is not None


def test_an_errored_lock_is_not_free_before_its_pause_ends(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        lock = at.take(locks, at.topic)
        assert lock is not None
        assert [state.free for state in locks.pending(60.0)] == [False]
        locks.fail(lock, "why")
        assert [state.free for state in locks.pending(60.0)] == [False]
        assert at.take(locks, at.topic) is None
        assert [state.free for state in locks.pending(0.0)] == [True]
        again = at.take(locks, at.topic, seconds=0.0)
        assert again is not None
        assert again.retries == 1
        # The error did not say that the topic is missing.
        assert again.missing_seconds == 0


def test_a_worker_that_inited_too_late_leaves_before_it_writes(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    with standing_at(CrashPoint.RECOVERY_FENCED, rows=False) as hold, at.backend(threads=1, hook=HOOK) as late:
        assert hold.arrived.wait(60)
        written = at.admin_end(progress_topic(at.settings().name))
        at.sql("UPDATE outbox_lock SET token = token + 1, locked_by = 'another'")
        hold.go.set()
        eventually(lambda: late.counts.get("locks_lost"), 60)
        # The worker wrote neither a record nor a claim, and the other process holds the lock.
        assert late.counts.get("transactions", 0) == 0
        assert at.admin_end(progress_topic(at.settings().name)) == written
        assert at.locks()[at.topic]["locked_by"] == "another"


def test_an_error_of_our_own_rests_a_topic_only_shortly(place: Places) -> None:
    at = place()
    topics = at.topics(2)
    at.stash(*(Message(topic=topic, key="k", value="1") for topic in topics))
    faulty, Refusing.left = "tests.relay.locked_place:refusing_first", 2
    # A rest of `lock_seconds` would be longer than the test.
    with at.backend(threads=1, producer_factory=faulty, locking={"lock_seconds": 600.0}) as backend:
        at.until_sent(backend)
    assert backend.counts["errored_turns"] == 1
    assert sorted(record.topic() or "" for record in at.read(2, *topics)) == topics


def test_a_turn_restarts_at_once_after_one_error(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    faulty, Refusing.left = "tests.relay.locked_place:refusing_first", 1
    with at.backend(threads=1, producer_factory=faulty) as backend:
        at.until_sent(backend)
        assert "errored_turns" not in backend.counts


def test_a_part_of_a_split_topic_has_only_its_keys(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(100)))
    split = {"split_topics": {at.topic: 2}}
    joined(at.locked_settings(locking=split))
    with at.locking() as locks:
        locks.register(at.topic, 2)
        ((term,),) = at.sql("SELECT term::text FROM thresher_relay")
        terms = LockTerms(owner="test", relay=at.settings().name, term=term, seconds=60.0)
        # Another worker holds the second part.
        other = locks.acquire(LockState(topic=at.topic, part=1, parts=2), terms)
        assert other is not None
        with at.backend(threads=1, locking=split) as backend:
            at.until(backend, lambda: at.pending() < 100)
            at.until(backend, lambda: not at.locks()[f"{at.topic}#0"]["locked_by"])
            mine = {bucket_of(f"k{n}".encode()) % 2 for n in numbers(at.read(100 - at.pending()))}
            assert mine == {0}
            locks.release(other)
            at.until_sent(backend)


def test_the_token_is_checked_by_every_change(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        old = at.take(locks, at.topic, owner="old")
        assert old is not None
        assert at.take(locks, at.topic, owner="new") is None
        new = at.take(locks, at.topic, owner="new", seconds=0.0)
        assert new is not None
        assert new.token == old.token + 1
        before = at.locks()
        ((id_, moment),) = at.sql("SELECT id, (extract(epoch FROM create_time) * 1000000)::bigint FROM outbox")
        wanted = Wanted(buckets=range(64), rows=10, batch_bytes=10_000, largest_bytes=10_000)
        for change in (
            lambda: locks.require(old),
            lambda: locks.renew(old),
            lambda: locks.release(old),
            lambda: locks.fail(old, "why"),
            lambda: locks.take(old, wanted, uuid.uuid4()),
            lambda: locks.settle(old, Fates(ids=[id_], create_times=[moment])),
            lambda: locks.split(at.topic, 4, [old]),
        ):
            with pytest.raises(LockLost):
                change()
        assert at.locks() == before
        assert [row[0] for row in locks.take(new, wanted, uuid.uuid4())] == [id_]
        assert locks.settle(new, Fates(ids=[id_], create_times=[moment])) == 1
        assert at.pending() == 0


def test_deimos_errored_lock_without_a_time_can_be_taken(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        at.sql("UPDATE outbox_lock SET error = true, locked_by = NULL, locked_at = NULL")
        assert at.take(locks, at.topic) is not None


def test_a_compacted_topic_gets_only_each_keys_newest_row(place: Places) -> None:
    at = place()
    at.stash(
        *(Message(topic=at.topic, key=f"k{n % 3}", value=str(n)) for n in range(300)),
        *(Message(topic=at.topic, value=str(n)) for n in range(300, 303)),
    )
    with at.backend(threads=1, locking={"compact_topics": (at.topic,)}) as backend:
        at.until_sent(backend)
        assert backend.counts["filtered"] == 297
    assert sorted(numbers(at.read(6))) == [297, 298, 299, 300, 301, 302]


def test_a_compacted_key_gets_its_newest_sendable_row(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"), Message(topic=at.topic, key="k", value="2"))
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', repeat('x', 2000000)::bytea)",
        at.topic,
    )
    with at.backend(threads=1, locking={"compact_topics": (at.topic,)}) as backend:
        at.until_sent(backend)
    assert numbers(at.read(1)) == [2]
    assert [kind for _, kind, *_ in at.dead()] == ["too-large"]


def test_too_large_a_message_is_dead_alone(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(20)))
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', repeat('x', 2000000)::bytea)",
        at.topic,
    )
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(20, 40)))
    with at.backend(threads=1) as backend:
        at.until_sent(backend)
    assert numbers(at.read(40)) == list(range(40))
    assert [kind for _, kind, *_ in at.dead()] == ["too-large"]


def test_rows_are_stamped_under_settle_stamp(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(250)))
    with at.backend(threads=1, settling=Settling.STAMP) as backend:
        at.until_sent(backend)
    assert at.sql("SELECT count(*), count(dispatched_time) FROM outbox") == [(250, 250)]
    assert numbers(at.read(250)) == list(range(250))


def test_a_split_topic_is_sent_in_parts_in_key_order(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n % 50}", value=str(n)) for n in range(1_000)))
    with at.backend(threads=3, locking={"split_topics": {at.topic: 4}}) as backend:
        at.until_sent(backend)
    found = at.read(1_000)
    require_order(found)
    assert sorted(numbers(found)) == list(range(1_000))
    assert set(at.locks()) == {at.topic, *(f"{at.topic}#{part}" for part in range(4))}
    # All four parts were used, each with its own slot.
    assert len({at.locks()[f"{at.topic}#{part}"]["slot"] for part in range(4)}) == 4


def test_another_split_is_refused_until_it_is_changed_for_all(place: Places) -> None:
    at = place()
    four, two = {"split_topics": {at.topic: 4}}, {"split_topics": {at.topic: 2}}
    at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(100)))
    with at.backend(locking=four) as backend:
        at.until_sent(backend)
        with pytest.raises(OtherSplit, match="4 parts"):
            joined(at.locked_settings(locking=two))
        # Workers are running meanwhile.
        at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(100, 200)))
        assert change_split(at.locked_settings(locking=four), at.topic, 2, wait_seconds=60) == 4
        at.stash(*(Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(200, 300)))
        assert isinstance(ended(backend), OtherSplit)
    with at.backend(locking=two) as backend:
        at.until_sent(backend)
    found = at.read(300)
    require_order(found)
    assert Counter(numbers(found)) == Counter(range(300))


def test_a_killed_parts_rows_are_settled_before_the_split_changes(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(40)))
    with standing_at(CrashPoint.COMMITTED) as hold, at.backend(threads=1, hook=HOOK) as backend:
        assert hold.arrived.wait(60)
        # As if the worker was killed here, and its lock has expired.
        at.sql("UPDATE outbox_lock SET locked_at = locked_at - interval '2 minutes' WHERE locked_by IS NOT NULL")
        assert change_split(at.locked_settings(), at.topic, 3, wait_seconds=60) == 1
        assert at.pending() == 0
        hold.go.set()
        at.stash(Message(topic=at.topic, key="k1", value="40"))
        assert isinstance(ended(backend), OtherSplit)
    assert at.pending() == 1
    assert sorted(numbers(at.read(40))) == list(range(40))


def test_leader_and_topic_locks_refuse_each_other_while_one_runs(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    with at.backend(threads=1) as backend:
        at.until_sent(backend)
        with pytest.raises(OtherCoordination, match="locks topics"):
            taken_over(at.settings())
    assignment = taken_over(at.settings(shards=1))
    with assignment_session(at, assignment.term), pytest.raises(OtherCoordination, match="has a leader"):
        joined(at.locked_settings())
    joined(at.locked_settings())


def assignment_session(at: LockedPlace, term: str) -> Any:
    """Open a session as a leader of this term has one."""
    return closing(store_of(at.settings()).session(f"{sessions(at.settings().name, term)}/0"))


def test_a_switch_to_a_leader_settles_a_lost_workers_rows(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    with standing_at(CrashPoint.COMMITTED) as hold, at.backend(threads=1, hook=HOOK) as backend:
        assert hold.arrived.wait(60)
        # The process loses its database sessions, and counts as dead.
        end_sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'thresher/%'"
        backend.request_stop()
        at.sql(end_sessions)
        taken_over(at.settings(shards=1))
        assert at.pending() == 0
        hold.go.set()
    assert numbers(at.read(10)) == list(range(10))


def test_a_truncated_table_is_settled_before_rows_are_read(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    with at.backend() as backend:
        at.until_sent(backend)
        ((first,),) = at.sql("SELECT term FROM thresher_relay")
        # TRUNCATE gives the table a new file: a worker cannot tell it from a restored table.
        at.sql("TRUNCATE outbox")
        at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10, 20)))
        at.until_sent(backend)
        ((second,),) = at.sql("SELECT term FROM thresher_relay")
        assert first != second
    assert numbers(at.read(20)) == list(range(20))


def test_rows_of_a_restored_table_are_not_sent_again(place: Places) -> None:
    at = place()
    topics = at.topics(3)
    at.stash(*(Message(topic=topics[n % 3], key="k", value=str(n)) for n in range(30)))
    at.sql("CREATE TABLE backup AS SELECT id, create_time, kafka_topic, kafka_key, kafka_value FROM outbox")
    # Several batches of each topic: the last progress record of a slot names only some of the rows.
    with at.backend(limits={"batch_rows": 3}) as backend:
        at.until_sent(backend)
    at.sql("TRUNCATE outbox")
    at.sql("TRUNCATE outbox_lock")
    at.sql(
        "INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_value) OVERRIDING SYSTEM VALUE "
        "SELECT * FROM backup"
    )
    with at.backend() as backend:
        at.until_sent(backend)
    assert sorted(numbers(at.read(30, *topics))) == list(range(30))


def test_an_outbox_without_the_index_is_refused_with_the_remedy(place: Places) -> None:
    at = place()
    ((index,),) = at.sql(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'outbox' AND indexdef LIKE '%kafka_topic%'"
    )
    at.sql(f'DROP INDEX "{index}"')
    with pytest.raises(DatabaseRefused, match="CREATE INDEX"):
        joined(at.locked_settings())


def test_a_leader_of_another_name_is_refused(place: Places) -> None:
    at = place()
    joined(at.locked_settings())
    with pytest.raises(ForeignProgress, match="relayed under the name"):
        taken_over(at.settings(name=f"{at.prefix}other"))


DEIMOS_LOCKS = """
    DROP TABLE kafka_topic_info;
    CREATE TABLE kafka_topic_info (
      id BIGSERIAL PRIMARY KEY, topic VARCHAR NOT NULL, locked_by VARCHAR, locked_at TIMESTAMP WITHOUT TIME ZONE,
      error BOOLEAN NOT NULL DEFAULT false, retries INTEGER NOT NULL DEFAULT 0);
    CREATE UNIQUE INDEX ON kafka_topic_info (topic);
"""


def test_deimos_own_tables_are_shared_by_locks(place: Places) -> None:
    at = place(shape=Shape.DEIMOS, table="kafka_messages")
    # As Deimos left the table: without our columns, with a row of Deimos.
    at.sql(DEIMOS_LOCKS)
    at.sql("INSERT INTO kafka_topic_info (topic, error, retries) VALUES (%s, true, 3)", at.topic)
    at.stash(
        *(Message(topic=at.topic, key=f"k{n % 3}", partition_key=f"p{n % 3}", value=str(n)) for n in range(300)),
        *(Message(topic=at.topic, key="q", value=str(n)) for n in range(300, 350)),
    )
    with standing_at(CrashPoint.BEFORE_COMMIT) as hold, at.backend(threads=2, hook=HOOK) as backend:
        assert hold.arrived.wait(60)
        ((sessions_, rows),) = at.sql(
            "SELECT count(DISTINCT session_id), count(*) FROM kafka_messages WHERE session_id IS NOT NULL"
        )
        assert (sessions_, rows) == (1, 100)
        assert at.locks()[at.topic]["locked_by"]
        hold.go.set()
        at.until_sent(backend)
    found = at.read(350)
    require_order(found)
    for record in found[:300]:
        if (key := record.key()) in {b"k0", b"k1", b"k2"}:
            assert record.partition() == crc32_partition(b"p" + bytes(key)[1:], 3)
    lock = at.locks()[at.topic]
    assert (lock["locked_by"], lock["error"], lock["retries"]) == (None, False, 0)


def test_outboxes_that_share_deimos_locks_give_slots_one_by_one(place: Places) -> None:
    at = place(shape=Shape.DEIMOS, table="kafka_messages")
    outbox = TableName(table="other_messages", schema="public")
    with at.locking() as locks, psycopg.connect(at.dsn, autocommit=True) as connection:
        other = PostgresTopicLocks(connection, outbox, Shape.DEIMOS, cast("Any", None))
        locks.register("one", 1)
        connection.execute("SET lock_timeout = '100ms'")
        with psycopg.connect(at.dsn) as registering:
            registering.execute("SELECT FROM thresher_lock WHERE name LIKE 'topics %' FOR UPDATE")
            with pytest.raises(DatabaseLost, match="lock timeout"):
                other.register("two", 1)
        other.register("two", 1)
    assert at.sql("SELECT topic, slot FROM kafka_topic_info ORDER BY slot") == [("one", 0), ("two", 1)]


def test_a_lost_lock_gives_no_deimos_message_a_session_id(place: Places) -> None:
    at = place(shape=Shape.DEIMOS, table="kafka_messages")
    at.stash(Message(topic=at.topic, key="k", value="v"))
    wanted = Wanted(buckets=range(64), rows=10, batch_bytes=10_000, largest_bytes=10_000)
    joined(at.locked_settings())
    with at.locking() as locks:
        locks.register(at.topic, 1)
        old = at.take(locks, at.topic, owner="old")
        new = at.take(locks, at.topic, owner="new", seconds=0.0)
        assert old is not None
        assert new is not None
        with pytest.raises(LockLost):
            locks.take(old, wanted, uuid.uuid4())
        assert at.sql("SELECT session_id FROM kafka_messages") == [(None,)]
        session_id = uuid.uuid4()
        assert len(locks.take(new, wanted, session_id)) == 1
        assert at.sql("SELECT session_id FROM kafka_messages") == [(str(session_id),)]


def test_a_lock_table_that_allows_duplicate_topics_is_refused(place: Places) -> None:
    at = place(shape=Shape.DEIMOS, table="kafka_messages")
    at.sql(DEIMOS_LOCKS.replace("UNIQUE", ""))
    with pytest.raises(DatabaseRefused, match="CREATE UNIQUE INDEX"):
        joined(at.locked_settings())


def test_deimos_messages_without_a_session_id_are_refused_before_anything(place: Places) -> None:
    at = place(shape=Shape.DEIMOS, table="kafka_messages")
    at.sql("ALTER TABLE kafka_messages DROP COLUMN session_id")
    with pytest.raises(DatabaseRefused, match="session_id"):
        joined(at.locked_settings())
    assert at.sql("SELECT to_regclass('thresher_relay')") == [(None,)]


def test_figures_show_pending_rows_locks_and_errors_by_topic(place: Places) -> None:
    at = place()
    topics = at.topics(3)
    at.stash(*(Message(topic=topics[n % 2], key="k", value=str(n)) for n in range(10)))
    joined(at.locked_settings())
    with at.locking() as locks:
        for topic in topics:
            locks.register(topic, 1)
        first, second, third = (at.take(locks, topic) for topic in topics)
        assert first is not None
        assert second is not None
        assert third is not None
        locks.fail(second, "why")
        locks.release(third)
        found = {each.topic: each for each in locks.figures(50)}
        assert set(found) == set(topics[:2])
        assert (found[topics[0]].pending, found[topics[0]].locked, found[topics[0]].errored) == (5, 1, 0)
        assert (found[topics[1]].pending, found[topics[1]].locked, found[topics[1]].errored) == (5, 0, 1)
        assert found[topics[1]].reason == "why"
        assert (found[topics[0]].oldest_seconds or 0) > 0
        assert len(locks.figures(1)) == 1
