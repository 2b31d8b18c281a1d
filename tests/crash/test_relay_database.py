"""The relay and a database that is shut down, restored, promoted, truncated, locked and bloated under it."""

import itertools
import time
from pathlib import Path

import psycopg
import pytest

from tests.faults.standing import HOOK, Standing, standing
from tests.processes import eventually
from tests.relay.database_load import BACK_SECONDS, moves, once_in_order, require_good, rows, writers
from tests.relay.databases import copy_data, data_of, own_postgres, standby_of
from tests.relay.relaying import Place, Relaying
from thresher.core.errors import Superseded
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.postgres import Postgres
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session

# However long a test takes, nobody gives a topic up that is still to be made.
PATIENT = {"grace_seconds": 600.0}
pytestmark = pytest.mark.timeout(400)


def test_shutdowns_locks_and_long_transactions_under_load_lose_repeat_and_reorder_nothing(
    stack: Stack, spark: Session, topic_prefix: str, tmp_path: Path
) -> None:
    with own_postgres() as postgres:
        at = Place(stack, postgres.create_database("shaken"), topic_prefix)
        late = f"{at.prefix}late"
        at.admin.create_topic(late)
        with at.relaying() as relaying, writers(at, tmp_path) as load:
            moves(at, relaying)
            postgres.server.stop()  # fast
            postgres.start()
            moves(at, relaying)
            postgres.server.end()  # immediate
            postgres.start()
            moves(at, relaying)
            with psycopg.connect(at.dsn) as old, psycopg.connect(at.dsn) as holder:
                old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                old.execute("SELECT 1")
                at.outbox.stash(holder, Message(topic=late, key="late", value="low id"))
                for _ in range(5):
                    moves(at, relaying)
                holder.commit()
                at.read(1, late, seconds=BACK_SECONDS)
                before = relaying.errors()
                with psycopg.connect(at.dsn) as locker:
                    locker.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
                    time.sleep(5.0)  # the fault itself
                moves(at, relaying)
                assert relaying.errors() == before, relaying.shards
        with at.relaying() as relaying:
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
        require_good(at, load)


def test_rows_that_a_restored_data_directory_brings_back_are_not_sent_again(
    stack: Stack, spark: Session, topic_prefix: str
) -> None:
    with own_postgres() as postgres:
        at = Place(stack, postgres.create_database("restored"), topic_prefix)
        later = f"{at.prefix}later"
        copy = data_of(postgres).with_name("copy")

        def restore() -> None:
            postgres.server.stop()
            copy_data(copy, data_of(postgres))
            postgres.start()

        with at.relaying(limits=PATIENT) as relaying:
            at.stash(*rows(at.topic, range(100)))
            # They wait for their topic, and so are in the copy.
            at.stash(*rows(later, range(100, 300)))
            relaying.until(lambda: later in relaying.relay.alarms and at.pending() == 200, BACK_SECONDS)
            postgres.server.stop()
            copy_data(data_of(postgres), copy)
            postgres.start()
            at.admin.create_topic(later)
            assert once_in_order(at, 200, later) == list(range(100, 300))
            at.stash(*rows(at.topic, range(300, 400)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            once_in_order(at, 200)
            # The relay goes on by itself; ids of rows that are lost with the restore are given out again.
            restore()
            at.stash(*rows(at.topic, range(400, 450)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            once_in_order(at, 250)
        with at.relaying(shards=3) as relaying:
            at.stash(*rows(at.topic, range(450, 500)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            # To before this relay took over, and to another layout.
            restore()
            at.stash(*rows(at.topic, range(500, 550)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            with at.relaying(shards=3) as newer:
                newer.until(lambda: newer.relay.term, BACK_SECONDS)
                assert isinstance(relaying.ended(), Superseded)
        assert once_in_order(at, 200, later) == list(range(100, 300))
        assert once_in_order(at, 350) == [*range(100), *range(300, 550)]


def test_rows_that_a_promoted_standby_has_not_seen_leave_are_not_sent_again(
    stack: Stack, spark: Session, topic_prefix: str
) -> None:
    with own_postgres() as primary:
        at = Place(stack, primary.create_database("promoted"), topic_prefix)
        later = f"{at.prefix}later"
        with standby_of(primary) as standby:
            both = psycopg.conninfo.make_conninfo(
                at.dsn,
                host="127.0.0.1,127.0.0.1",
                port=f"{primary.port},{standby.port}",
                target_session_attrs="read-write",
            )
            with at.relaying(dsn=both, limits=PATIENT) as relaying:
                at.stash(*rows(at.topic, range(100)))
                at.stash(*rows(later, range(100, 200)))
                relaying.until(lambda: later in relaying.relay.alarms and at.pending() == 100, BACK_SECONDS)
                caught_up(primary, standby)
                standby.server.stop()
                at.admin.create_topic(later)
                once_in_order(at, 100, later)
                relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
                primary.server.end()
                standby.start()
                at.dsn = standby.dsn("promoted")
                # From its promotion on the relay may be there at any moment.
                assert at.pending() > 0
                assert at.sql("SELECT pg_promote(wait_seconds => 120)") == [(True,)]
                at.stash(*rows(at.topic, range(200, 300)))
                relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
                at.sql("CHECKPOINT")
                assert at.sql("SELECT timeline_id FROM pg_control_checkpoint()") == [(2,)]
            assert once_in_order(at, 100, later) == list(range(100, 200))
            assert once_in_order(at, 200) == [*range(100), *range(200, 300)]


def caught_up(primary: Postgres, standby: Postgres) -> None:
    """Wait until the standby has seen everything."""
    with psycopg.connect(primary.dsn(), autocommit=True) as here, psycopg.connect(standby.dsn()) as there:
        (wanted,) = here.execute("SELECT pg_current_wal_lsn()::text").fetchone() or (None,)
        eventually(
            lambda: (there.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [wanted]).fetchone() or (0,))[0],
            BACK_SECONDS,
        )


def in_hand(at: Place, relaying: Relaying, stood: Standing, first: int) -> int:
    """Store rows, numbered from this one on, until somebody stands with 50 in hand; return the number behind them.

    A commit that took long is not certain: then recovery settles the rows, and nobody has come to the seam with them.
    """
    for number in itertools.count(first, 50):
        at.stash(*rows(at.topic, range(number, number + 50)))
        relaying.until(lambda: stood.arrived or at.pending() == 0, BACK_SECONDS)
        if stood.arrived:
            return number + 50
    raise AssertionError


def test_rows_with_old_ids_are_sent_when_the_table_was_truncated_under_a_relay_that_settles(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    at = Place(stack, dsn, topic_prefix)
    # All that is stored together is sent together, also by a shard that once was slow.
    with at.relaying(shards=1, hook=HOOK, limits={"batch_seconds": 60.0}) as relaying:
        with standing(CrashPoint.COMMITTED) as stood:
            sent = in_hand(at, relaying, stood, 0)
            at.sql("TRUNCATE outbox RESTART IDENTITY")
            at.stash(*rows(at.topic, range(sent, sent + 60)))
            assert at.sql("SELECT min(id), max(id) FROM outbox") == [(1, 60)]
            # The last ten have ids that are not in flight, and are read meanwhile: they must not overtake the others.
            time.sleep(0.5)
        relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
        assert once_in_order(at, sent + 60) == list(range(sent + 60))
        # A zombie in the middle of its settling, with its successor at work.
        with standing(CrashPoint.SETTLING) as stood:
            sent = in_hand(at, relaying, stood, sent + 60)
            with at.relaying(shards=1) as successor:
                successor.until(lambda: at.pending() == 0, BACK_SECONDS)
                at.sql("TRUNCATE outbox RESTART IDENTITY")
                at.stash(*rows(at.topic, range(sent, sent + 50)))
                assert at.sql("SELECT coalesce(max(id), 0) <= 50 FROM outbox") == [(True,)]
                stood.go()
                assert isinstance(relaying.ended(), Superseded)
                successor.until(lambda: at.pending() == 0, BACK_SECONDS)
                at.stash(*rows(at.topic, range(sent + 50, sent + 60)))
                assert once_in_order(at, sent + 60) == list(range(sent + 60))


def test_a_head_behind_many_dead_rows_is_still_found(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> None:
    at = Place(stack, dsn, topic_prefix)
    at.sql("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    with psycopg.connect(at.dsn) as old:
        # While somebody may still see them, not even their index entries can go.
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1 FROM outbox")
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
            " SELECT %s, convert_to('k' || n %% 20, 'UTF8'), 'dead' FROM generate_series(1, 200000) n",
            at.topic,
        )
        at.sql("DELETE FROM outbox")
        with at.relaying() as relaying:
            for first in range(0, 1000, 100):
                at.stash(*rows(at.topic, range(first, first + 100)))
                # Seen: 1 s each. A table that is scanned once for each bucket or row would take minutes.
                relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
    assert once_in_order(at, 1000) == list(range(1000))
