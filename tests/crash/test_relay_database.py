"""The relay while its database is shut down, restored, failed over, truncated, locked and bloated."""

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

# However long a test takes, rows of a topic that is created late are not declared dead.
PATIENT = {"grace_seconds": 600.0}
pytestmark = pytest.mark.timeout(400)


def test_database_shutdowns_and_locks_lose_repeat_and_reorder_nothing(
    stack: Stack, spark: Session, topic_prefix: str, tmp_path: Path
) -> None:
    with own_postgres() as postgres:
        at = Place(stack, postgres.create_database("shaken"), topic_prefix)
        late = f"{at.prefix}late"
        at.admin.create_topic(late)
        with at.relaying() as relaying, writers(at, tmp_path, rate=80.0) as load:
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


def test_rows_that_a_restore_brings_back_are_not_resent(stack: Stack, spark: Session, topic_prefix: str) -> None:
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
            # These rows wait for their topic, and are therefore in the copy.
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
            # The relay goes on by itself. Ids of rows that the restore removed are assigned again.
            restore()
            at.stash(*rows(at.topic, range(400, 450)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            once_in_order(at, 250)
        with at.relaying(shards=3) as relaying:
            at.stash(*rows(at.topic, range(450, 500)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            # Restores the state from before this relay took over, with another layout.
            restore()
            at.stash(*rows(at.topic, range(500, 550)))
            relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
            with at.relaying(shards=3) as newer:
                newer.until(lambda: newer.relay.term, BACK_SECONDS)
                assert isinstance(relaying.ended(), Superseded)
        assert once_in_order(at, 200, later) == list(range(100, 300))
        assert once_in_order(at, 350) == [*range(100), *range(300, 550)]


def test_sent_rows_left_on_a_promoted_standby_are_not_resent(stack: Stack, spark: Session, topic_prefix: str) -> None:
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
                # Looked at before the promotion: right after it, the relay may settle the rows.
                assert at.pending() > 0
                assert at.sql("SELECT pg_promote(wait_seconds => 120)") == [(True,)]
                at.stash(*rows(at.topic, range(200, 300)))
                relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
                at.sql("CHECKPOINT")
                assert at.sql("SELECT timeline_id FROM pg_control_checkpoint()") == [(2,)]
            assert once_in_order(at, 100, later) == list(range(100, 200))
            assert once_in_order(at, 200) == [*range(100), *range(200, 300)]


def caught_up(primary: Postgres, standby: Postgres) -> None:
    """Wait until the standby has replayed all of the primary's log."""
    with psycopg.connect(primary.dsn(), autocommit=True) as here, psycopg.connect(standby.dsn()) as there:
        (wanted,) = here.execute("SELECT pg_current_wal_lsn()::text").fetchone() or (None,)
        eventually(
            lambda: (there.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [wanted]).fetchone() or (0,))[0],
            BACK_SECONDS,
        )


def in_hand(at: Place, relaying: Relaying, stood: Standing, first: int) -> int:
    """Store batches of 50 rows, numbered from `first`, until a worker is at its crash point; return the next number.

    A commit that took long is uncertain. Recovery then settles the rows, and no worker reaches the point with them.
    """
    for number in itertools.count(first, 50):
        at.stash(*rows(at.topic, range(number, number + 50)))
        relaying.until(lambda: stood.arrived or at.pending() == 0, BACK_SECONDS)
        if stood.arrived:
            return number + 50
    raise AssertionError


def test_rows_with_reused_ids_are_sent_after_a_truncate(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    at = Place(stack, dsn, topic_prefix)
    # A long batch time: rows that are stored together are sent together, even by a shard that was slow before.
    with at.relaying(shards=1, hook=HOOK, limits={"batch_seconds": 60.0}) as relaying:
        with standing(CrashPoint.COMMITTED) as stood:
            sent = in_hand(at, relaying, stood, 0)
            at.sql("TRUNCATE outbox RESTART IDENTITY")
            at.stash(*rows(at.topic, range(sent, sent + 60)))
            assert at.sql("SELECT min(id), max(id) FROM outbox") == [(1, 60)]
            # The last ten rows have ids that are not in flight, so they are read now. These ten must not overtake the
            # other rows.
            time.sleep(0.5)
        relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
        assert once_in_order(at, sent + 60) == list(range(sent + 60))
        # A zombie is stopped while it settles, and its successor works.
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


def test_the_head_behind_many_dead_tuples_is_found(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> None:
    at = Place(stack, dsn, topic_prefix)
    at.sql("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    with psycopg.connect(at.dsn) as old:
        # While a snapshot can see the deleted rows, not even their index entries are removed.
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1 FROM outbox")
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
            " SELECT %s, convert_to('k' || n %% 20, 'UTF8'), 'dead' FROM generate_series(1, 200000) n",
            at.topic,
        )
        at.sql("DELETE FROM outbox")
        with at.relaying() as relaying:
            for first in range(0, 500, 100):
                at.stash(*rows(at.topic, range(first, first + 100)))
                # Seen: 1 s each. One scan of the table for each bucket or row would take minutes.
                relaying.until(lambda: at.pending() == 0, BACK_SECONDS)
    assert once_in_order(at, 500) == list(range(500))
