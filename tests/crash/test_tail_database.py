"""The tail while its database fails over, is restored from a copy, or is moved to another server."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.processes import eventually
from tests.relay.database_load import BACK_SECONDS, rows
from tests.relay.databases import copy_data, data_of, own_postgres, standby_of
from tests.tail.tailing import TailPlace
from thresher.devstack.postgres import Postgres
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session
from thresher.tail.leader.take_over import take_over
from thresher.tail.problem import LogLost

pytestmark = pytest.mark.timeout(400)

_GROW = "CREATE TABLE grown AS SELECT n, repeat('x', 300) FROM generate_series(1, %s) n"


def numbers(at: TailPlace, count: int) -> list[int]:
    return sorted(int(message.value() or b"") for message in at.read(count, seconds=BACK_SECONDS))


def published(at: TailPlace, *parts: range) -> None:
    """Write the rows of the last part while a tail runs, and check that each row of all parts was published once."""
    with at.tailing() as tailing:
        tailing.until(lambda: tailing.up, BACK_SECONDS)
        at.stash(*rows(at.topic, parts[-1]))
        wanted = [number for part in parts for number in part]
        assert numbers(at, len(wanted)) == wanted


@contextmanager
def slot_on(standby: Postgres, primary: Postgres, name: str, database: str) -> Iterator[None]:
    """Create the slot on a standby. That waits for a snapshot record, which the primary is asked to write."""
    made = threading.Event()

    def make() -> None:
        with psycopg.connect(standby.dsn(database), autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        made.set()

    def told() -> bool:
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_log_standby_snapshot()")
        return made.wait(0.2)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    eventually(told, BACK_SECONDS)
    thread.join()
    yield


def test_a_tail_goes_on_after_a_promotion_and_after_restarts(stack: Stack, spark: Session, topic_prefix: str) -> None:
    with own_postgres() as primary, standby_of(primary) as standby:
        at = TailPlace(stack, primary.create_database("promoted"), topic_prefix)
        with psycopg.connect(primary.dsn(), autocommit=True) as here, psycopg.connect(standby.dsn()) as there:

            def caught_up() -> bool:
                (wanted,) = here.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
                query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
                return bool((there.execute(query, [wanted]).fetchone() or (False,))[0])

            eventually(caught_up, BACK_SECONDS)
            with slot_on(standby, primary, at.slot, "promoted"):
                published(at, range(50))
            # Dirty pages, so that the checkpoint after the promotion takes long.
            at.sql(_GROW.replace("%s", "60000"))
            eventually(caught_up, BACK_SECONDS)
        primary.server.end()
        at.dsn = standby.dsn("promoted")
        assert at.sql("SELECT pg_promote(wait_seconds => 120)") == [(True,)]
        published(at, range(50), range(50, 100))
        assert at.sql("SELECT timeline_id FROM pg_control_checkpoint()") == [(1,)], "no checkpoint has ended yet"
        at.sql("CHECKPOINT")
        published(at, range(100), range(100, 150))


def test_a_restored_log_that_has_grown_is_detected(stack: Stack, spark: Session, topic_prefix: str) -> None:
    with own_postgres() as postgres:
        at = TailPlace(stack, postgres.create_database("put_back"), topic_prefix)
        published(at, range(10))
        postgres.server.stop()
        copy = data_of(postgres).with_name("copy")
        copy_data(data_of(postgres), copy)
        postgres.start()
        published(at, range(10), range(10, 20))
        postgres.server.stop()
        copy_data(copy, data_of(postgres))
        postgres.start()
        at.stash(*rows(at.topic, range(20, 30)))
        at.sql(_GROW.replace("%s", "10000"))
        with at.tailing() as tailing:
            error = tailing.ended()
        assert isinstance(error, LogLost), error
        assert "not the WAL" in str(error)
        # The remedy that the error message names works.
        at.drop_slot()
        at.create_slot()
        at.sql("UPDATE thresher_relay SET progress_topic_id = NULL")
        published(at, range(20), range(30, 40))


def test_an_adopted_log_survives_a_rejected_first_transaction(stack: Stack, spark: Session, topic_prefix: str) -> None:
    with own_postgres() as old, own_postgres() as new:
        at = TailPlace(stack, old.create_database("moved"), topic_prefix)
        at.sql(_GROW.replace("%s", "60000"))
        published(at, range(10))
        (known,) = at.sql("SELECT name, outbox_id, secret FROM thresher_relay")
        moved = TailPlace(stack, new.create_database("moved"), f"{topic_prefix}moved-")
        take_over(moved.settings())
        # The control row as a dump restores it, and as an operator adopts it.
        copied = "name = %s, outbox_id = %s, secret = %s, progress_topic_id = NULL"
        moved.sql(f"UPDATE thresher_relay SET {copied}", *known)
        moved.prefix, moved.topic = at.prefix, at.topic
        small = f"{at.prefix}small"
        at.admin.create_topic(small, config={"max.message.bytes": "2000"})
        moved.stash(*rows(at.topic, range(10, 15)))
        moved.stash(Message(topic=small, key="k", value=os.urandom(20_000)))
        moved.stash(*rows(at.topic, range(15, 20)))
        with moved.tailing() as tailing:
            assert numbers(moved, 20) == list(range(20))
            tailing.until(lambda: len(moved.dead()) == 1, BACK_SECONDS)
