"""Another login of the server, without rights on our tables, stops nothing, and nothing of ours runs its code."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.archive.outbox_place import DUE, OutboxPlace, archiving
from tests.processes import eventually
from thresher.archive.archiver import Archiver
from thresher.archive.problem import ArchiverBusy
from thresher.db.control import NewControlRow
from thresher.db.postgres.own_tables.lock_rows import LockRows
from thresher.db.postgres.sessions import connect_within
from thresher.db.postgres.store import PostgresSession, PostgresStore
from thresher.election.lease import Lease

# Every key that an advisory lock of ours ever had, and what a guess would try.
_KEYS = (
    "hashtext('thresher_relay')",
    "hashtext('thresher_lease')",
    "hashtextextended('thresher archive ' || '\"public\".\"outbox\"', 0)",
    "hashtextextended('thresher_dispatch', to_regclass('outbox')::oid::bigint)",
)
_ANSWER_SECONDS = 5.0
# An idle transaction in a session, which neither has an id nor a snapshot.
_HORIZON = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'thresher%' "
    "AND num_nonnulls(backend_xid, backend_xmin) > 0"
)


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    return OutboxPlace(dsn, tmp_path)


@pytest.fixture
def stranger(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of a login without any right on our tables."""
    role = f"stranger_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'strange'".encode())
        try:
            with psycopg.connect(dsn, user=role, password="strange", autocommit=True) as connection:
                yield connection
        finally:
            owner.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def opened(place: OutboxPlace, application: str) -> PostgresSession:
    store = PostgresStore(place.dsn, place.table, make=connect_within(_ANSWER_SECONDS))
    return store.session(application, locate=True)


def test_a_strangers_locks_stop_no_take_over(place: OutboxPlace, stranger: psycopg.Connection[Any]) -> None:
    for key in _KEYS:
        stranger.execute(f"SELECT pg_advisory_lock({key})".encode())
    place.fill()
    with closing(opened(place, "thresher/one/1/d")) as session:
        session.create_tables()
        for query in (
            "LOCK thresher_lock IN ACCESS SHARE MODE",
            "SELECT FROM thresher_lock",
            "LOCK outbox IN ROW SHARE MODE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
                stranger.execute(query.encode())
        row = NewControlRow(
            name="one", outbox=session.outbox.quoted(), outbox_id=str(uuid.uuid4()), system_id="s",
            term=str(uuid.uuid4()), mode="exactly-once", shards=1,
        )  # fmt: skip
        assert session.control.insert(row) == []
        session.await_dispatchers(first=True, within_seconds=_ANSWER_SECONDS)
        locks = session.topic_locks()
        locks.create()
        assert locks.register("t", 3) == 3
    assert place.archiver("table").run().rows == DUE
    lease = Lease(dsn=place.dsn, name="one", beside="outbox")
    lease.start()
    try:
        eventually(lambda: lease.granted, 60)
    finally:
        lease.stop()


def test_a_lock_ends_with_its_session_and_holds_back_no_vacuum(place: OutboxPlace) -> None:
    place.fill()
    with psycopg.connect(place.dsn, autocommit=True, application_name="thresher/other") as other:
        with archiving(other) as held:
            assert held
            assert place.sql(_HORIZON) == [(0,)], "no transaction stays open for the lock"
            with pytest.raises(ArchiverBusy):
                place.archiver("table").run()
        with archiving(other), closing(psycopg.connect(place.dsn, autocommit=True)) as third, archiving(third) as held:
            assert not held
        other_lock = archiving(other)
        assert other_lock.__enter__()
        other.close()
        eventually(lambda: _archived(place.archiver("table")), 60)
    # A process id that another session has by now is no holder, nor is one that a dump has brought.
    recorded = (
        "UPDATE thresher_lock SET pid = pg_backend_pid(), started = now() - interval '1 day', role = current_user"
    )
    with psycopg.connect(place.dsn, autocommit=True) as living:
        living.execute(recorded)
        assert place.archiver("table").run().rows == 0


def _archived(archiver: Archiver) -> bool:
    try:
        return archiver.run().rows == DUE
    except ArchiverBusy:
        return False


def test_a_transactions_lock_lets_one_through_at_a_time(place: OutboxPlace) -> None:
    with (
        psycopg.connect(place.dsn, autocommit=True) as one,
        closing(connect_within(0.5)(place.dsn, "other")) as other,
    ):
        first, second = LockRows(one, "public"), LockRows(other, "public")
        first.create()
        with first.only_one("a"):
            with second.only_one("b"):
                pass
            with pytest.raises(Exception, match="statement timeout"), second.only_one("a"):
                pass
        with second.only_one("a"):
            pass
