"""A tail publishes the committed rows of an outbox from the WAL: each row once, in commit order."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.processes import eventually
from tests.tail.tailing import TailPlace
from thresher.db.postgres.dead_rows import PostgresDeadRows
from thresher.db.shape import Shape
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.outbox.dead_to_log import replay_to_log
from thresher.outbox.log_message import encode
from thresher.relay.leader.take_over import give_up, take_over
from thresher.relay.problem import OtherCoordination
from thresher.spark.session.session import Session
from thresher.tail.leader import switching
from thresher.tail.leader.take_over import take_over as take_tail_over
from thresher.tail.problem import LogLost, OtherReader
from thresher.tail.settings import Via
from thresher.tail.slot import LogUnreadable

Places = Callable[..., TailPlace]


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Iterator[Places]:
    made: list[TailPlace] = []

    def make(**options: Any) -> TailPlace:
        made.append(TailPlace(stack, dsn, topic_prefix, **options))
        return made[-1]

    yield make
    for each in made:
        each.drop_slot()


def values(messages: Any) -> list[bytes]:
    return [message.value() for message in messages]


@pytest.mark.parametrize("via", list(Via))
def test_rows_are_published_once_and_in_order(place: Places, via: Via) -> None:
    at = place(via=via)
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(50)))
    with at.tailing() as tailing:
        assert values(at.read(50)) == [b"%d" % n for n in range(50)]
        at.stash(Message(topic=at.topic, key="k", value="50", headers={"a": "1"}))
        found = at.read(51)
        assert found[-1].headers() == [("a", b"1")]
        tailing.until(lambda: tailing.total("relayed") == 51)
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.stash(Message(topic=at.topic, key="k", value="51"))
        assert values(at.read(52)) == [b"%d" % n for n in range(52)]
    assert at.dead() == []


@pytest.mark.parametrize("shape", [Shape.GOHARVEST, Shape.DEIMOS])
def test_tables_of_other_shapes_are_tailed(place: Places, shape: Shape) -> None:
    at = place(shape=shape)
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(50)))
    at.stash(Message(topic=at.topic, key="k", value=None))
    with at.tailing(limits={"grace_seconds": 0.5}) as tailing:
        assert values(at.read(51)) == [*(b"%d" % n for n in range(50)), None]
        at.stash(Message(topic=f"{at.prefix}missing", key="k", value="bad"))
        tailing.until(lambda: at.sql("SELECT count(*) FROM outbox_dead") == [(1,)])


@pytest.mark.parametrize("via", list(Via))
def test_transforms_change_rows_of_the_log(place: Places, via: Via) -> None:
    at = place(via=via)
    at.admin.create_topic(f"{at.topic}-elsewhere")
    at.stash(*(Message(topic=at.topic, key="k", value=f"v{n}", headers=[("n", str(n))]) for n in range(10)))
    at.stash(Message(topic=at.topic, key="k", value="v"))
    names = ("only_even", "shout", "elsewhere")
    with at.tailing(transforms=tuple(f"tests.relay.transforms:{name}" for name in names)) as tailing:
        found = at.read(5, f"{at.topic}-elsewhere")
        tailing.until(lambda: (tailing.total("relayed"), tailing.total("filtered")) == (5, 5))
        # The row that fails in a transform.
        tailing.until(lambda: len(at.dead()) == 1)
    assert values(found) == [f"V{n}!".encode() for n in (0, 2, 4, 6, 8)]
    assert found[0].headers() == [("n", b"0"), ("shouted", b"yes")]
    assert at.dead()[0][1] == "transform"
    at.read(0)


def test_rolled_back_rows_are_not_published(place: Places) -> None:
    at = place()
    with at.tailing(), psycopg.connect(at.dsn) as one, psycopg.connect(at.dsn) as other:
        at.outbox.stash(one, Message(topic=at.topic, key="k", value="one"))
        at.outbox.stash(other, Message(topic=at.topic, key="k", value="other"))
        other.commit()
        with one.transaction(force_rollback=True):
            at.outbox.stash(one, Message(topic=at.topic, key="k", value="undone"))
        at.read(1)
        one.commit()
        at.outbox.stash(other, Message(topic=at.topic, key="k", value="never"))
        other.rollback()
        assert values(at.read(2)) == [b"other", b"one"]


def test_rows_by_copy_and_a_huge_transaction_are_published_whole(place: Places) -> None:
    at = place()
    count = 12_000
    with at.tailing(limits={"batch_rows": 1_000}) as tailing:
        tailing.until(lambda: tailing.up)
        ((position,),) = at.sql("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint")
        with psycopg.connect(at.dsn) as connection:
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
                "SELECT %s, convert_to((n %% 100)::text, 'UTF8'), convert_to(n::text, 'UTF8') "
                "FROM generate_series(1, %s) n",
                [at.topic, count],
            )
            copy = "COPY outbox (kafka_topic, kafka_key, kafka_value) FROM STDIN"
            with connection.cursor().copy(copy) as rows:
                for n in range(500):
                    rows.write_row((at.topic, b"copied", b"c%d" % n))
        found = at.read(count + 500, seconds=120)
        tailing.until(lambda: (at.found_slot().confirmed or 0) > position)  # type: ignore[union-attr]
        assert tailing.total("transactions") > 10
    by_key: dict[bytes, list[int]] = {}
    for message in found:
        key, value = message.key() or b"", message.value() or b""
        by_key.setdefault(key, []).append(int(value.lstrip(b"c")))
    assert len(by_key) == 101
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_rows_of_many_missing_topics_hold_up_no_others(place: Places) -> None:
    at = place()
    with at.tailing(limits={"grace_seconds": 3600.0}) as tailing:
        tailing.until(lambda: tailing.up)
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s || n, 'k', 'lost' "
            "FROM generate_series(1, 15000) n",
            f"{at.prefix}missing",
        )
        at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(3)))
        assert values(at.read(3)) == [b"0", b"1", b"2"]


FORGED = ("forged", b"k", b"v", (), (), None, None)


@pytest.mark.parametrize("via", list(Via))
def test_bad_rows_become_dead_and_can_be_replayed(place: Places, via: Via) -> None:
    at = place(via=via)
    bad = Message(topic=f"{at.prefix}missing", key="k", value="bad")
    with at.tailing(limits={"grace_seconds": 0.5}) as tailing:
        tailing.until(lambda: tailing.up)
        at.stash(Message(topic=at.topic, key="k", value="1"), bad, Message(topic=at.topic, key="k", value="2"))
        if via is Via.LOG:
            at.sql("SELECT outbox_emit(%s::bytea)", b"\x07nonsense")
            # As a role could that may execute the server's own function.
            at.sql("SELECT pg_logical_emit_message(true, 'thresher:outbox', %s::bytea)", encode(FORGED))
            tailing.until(lambda: tailing.total("refused_messages") == 1)
            tailing.until(lambda: "it has no seal" in tailing.relay.alarms.get("refused messages", ""))
        expected = 1 + (via is Via.LOG)
        tailing.until(lambda: len(at.dead()) == expected)
        assert values(at.read(2)) == [b"1", b"2"]
        kinds = {kind: (topic, value) for _, kind, _, topic, value in at.dead()}
        assert kinds["no-topic"] == (bad.topic, b"bad")
        if via is Via.LOG:
            assert kinds["malformed"] == ("", b"\x07nonsense")
        at.admin.create_topic(bad.topic, partitions=1)

        def published() -> bool:
            # For a moment the topic still counts as missing, and its grace is over.
            with psycopg.connect(at.dsn) as connection:
                if via is Via.LOG:
                    replay_to_log(connection, at.settings().outbox, slot=at.slot, kind="no-topic")
                else:
                    PostgresDeadRows(connection, at.table, Shape.THRESHER).replay(kind="no-topic")
            return tailing.total("relayed") == 3

        tailing.until(published)
        assert values(at.read(1, bad.topic)) == [b"bad"]
        tailing.until(lambda: len(at.dead()) == expected - 1)


def test_a_held_topic_keeps_only_its_own_rows_waiting(place: Places) -> None:
    at = place()
    late = f"{at.prefix}late"
    at.stash(*(Message(topic=late if n % 2 else at.topic, key="k", value=str(n)) for n in range(40)))
    with at.tailing(limits={"grace_seconds": 600}) as tailing:
        assert len(at.read(20)) == 20
        before = at.found_slot()
        assert before is not None
    # The next attempt knows which rows wait.
    with at.tailing(limits={"grace_seconds": 600}) as tailing:
        tailing.until(lambda: tailing.up)
        at.admin.create_topic(late, partitions=1)
        assert values(at.read(20, late)) == [b"%d" % n for n in range(1, 40, 2)]
        assert len(at.read(20)) == 20
        tailing.until(lambda: (at.found_slot() or before).confirmed != before.confirmed)
    assert at.dead() == []


def test_an_idle_tail_keeps_no_log_back(place: Places) -> None:
    at = place()
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.sql("CREATE TABLE other AS SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n")
        (position,) = at.sql("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        tailing.until(lambda: (at.found_slot().confirmed or 0) >= position[0])  # type: ignore[union-attr]
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.read(1)


@pytest.mark.parametrize("via", list(Via))
def test_a_dropped_or_recreated_slot_ends_the_tail(place: Places, via: Via) -> None:
    at = place(via=via)
    with at.tailing() as tailing:
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
        at.drop_slot()
        error = tailing.ended()
    assert isinstance(error, LogLost), error
    assert error.exit_code == 4
    assert "may be missing in Kafka" in str(error)
    left = "nothing is left to read" if via is Via.LOG else "can be inserted again"
    assert left in str(error)
    at.create_slot()
    with at.tailing() as tailing:
        error = tailing.ended()
    assert isinstance(error, LogLost)
    assert "made again" in str(error)
    at.sql("UPDATE thresher_relay SET progress_topic_id = NULL")
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.stash(Message(topic=at.topic, key="k", value="2"))
        assert values(at.read(2)) == [b"1", b"2"]


def test_a_recreated_slot_is_noticed_in_the_first_term(place: Places) -> None:
    at = place()
    with at.tailing() as tailing:
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
        # Recreate the slot at once, so that the next attempt finds it.
        with psycopg.connect(at.dsn, autocommit=True) as connection, at.slots() as slots:
            slots.free(at.slot)
            eventually(lambda: dropped(connection, at.slot), 20)
            with connection.transaction():
                at.outbox.stash(connection, Message(topic=at.topic, key="k", value="2"))
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [at.slot])
        error = tailing.ended()
    assert isinstance(error, LogLost), error
    assert "made again" in str(error)


def dropped(connection: psycopg.Connection[Any], slot: str) -> bool:
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_an_adopted_slot_survives_a_leader_that_dies_early(place: Places) -> None:
    at = place()
    with at.tailing():
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
    at.drop_slot()
    at.create_slot()
    at.sql("UPDATE thresher_relay SET progress_topic_id = NULL")
    assert take_tail_over(at.settings()) is not None
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        at.stash(Message(topic=at.topic, key="k", value="2"))
        assert values(at.read(2)) == [b"1", b"2"]
    assert at.sql("SELECT count(progress_topic_id) FROM thresher_relay") == [(1,)]


def test_a_missing_publication_is_named_with_its_remedy(place: Places) -> None:
    at = place()
    at.sql(f"DROP PUBLICATION {at.slot}")
    with pytest.raises(LogUnreadable, match="CREATE PUBLICATION"):
        take_tail_over(at.settings())


def test_a_relay_and_a_tail_refuse_each_others_table(place: Places, stack: Stack, topic_prefix: str) -> None:
    at = place()
    relayed = at.relay_settings()
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
    with pytest.raises(OtherCoordination, match="tail leave"):
        take_over(relayed)
    switching.leave(at.settings())
    assert take_over(relayed) is not None
    at.create_slot()
    with pytest.raises(OtherReader, match="tail join"):
        take_tail_over(at.settings())


def test_an_outbox_moves_from_relay_to_tail_and_back(place: Places) -> None:
    at = place()
    relayed = at.relay_settings()
    numbers = iter(range(1000))

    def write(count: int) -> None:
        at.stash(*(Message(topic=at.topic, key="k", value=str(next(numbers))) for _ in range(count)))

    write(10)
    with at.relaying(relayed) as relaying:
        at.read(10)
        relaying.until(lambda: at.pending() == 0)
    write(1)
    with pytest.raises(OtherReader, match=r"1 rows of .* are not published yet"):
        switching.join(at.settings(), give_up(relayed))
    with at.relaying(relayed) as relaying:
        relaying.until(lambda: at.pending() == 0)
    switching.join(at.settings(), give_up(relayed))
    write(10)
    with at.tailing() as tailing:
        at.read(21)
        tailing.until(lambda: tailing.total("relayed") == 10)
    write(1)
    with pytest.raises(OtherReader, match="not published yet"):
        switching.leave(at.settings())
    with at.tailing() as tailing:
        at.read(22)
        with pytest.raises(OtherReader, match="still runs"):
            switching.leave(at.settings())
    assert switching.leave(at.settings()) == 11
    write(10)
    with at.relaying(relayed):
        assert values(at.read(32)) == [b"%d" % n for n in range(32)]
    at.create_slot()
    with at.relaying(relayed) as relaying:
        relaying.until(lambda: at.pending() == 0)
    switching.join(at.settings(), give_up(relayed))
    write(1)
    with at.tailing():
        assert values(at.read(33)) == [b"%d" % n for n in range(33)]


def test_published_rows_are_deleted_after_their_time(place: Places) -> None:
    at = place()
    with at.tailing(keep_seconds=0.0) as tailing, psycopg.connect(at.dsn) as writer:
        at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(20)))
        at.outbox.stash(writer, Message(topic=at.topic, key="k", value="20"))
        at.read(20)
        tailing.until(lambda: at.pending() == 0)
        writer.commit()
        at.read(21)
        tailing.until(lambda: at.pending() == 0)


def test_a_killed_worker_is_replaced(place: Places) -> None:
    at = place()
    with at.tailing() as tailing:
        for n in range(2):
            at.stash(*(Message(topic=at.topic, key="k", value=str(100 * n + m)) for m in range(100)))
            os.kill(tailing.pid(0), signal.SIGKILL)
        assert len(at.read(200)) == 200


def test_a_watch_that_loses_its_session_goes_on(place: Places) -> None:
    at = place()
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%outbox_dead%'"
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up)
        with psycopg.connect(at.dsn) as other:
            other.execute("LOCK TABLE outbox_dead IN ACCESS EXCLUSIVE MODE")
            tailing.until(lambda: bool(at.sql(waiting)))
            at.sql(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) found")
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
        tailing.until(lambda: tailing.up)


def test_more_log_than_the_limit_ends_the_tail(place: Places) -> None:
    at = place()
    with at.tailing(retained_limit_bytes=1) as tailing:
        error = tailing.ended()
    assert isinstance(error, LogLost)
    assert "retained_limit_bytes is 1" in str(error)
