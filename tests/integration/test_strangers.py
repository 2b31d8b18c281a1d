"""Another login of the server, without rights on our tables, stops nothing, and nothing of ours runs its code."""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.archive.outbox_place import DUE, OutboxPlace, archiving
from tests.processes import eventually
from thresher.archive.archiver import Archiver
from thresher.archive.manifests import archive_ddl
from thresher.archive.problem import ArchiverBusy
from thresher.db import TableName
from thresher.db.control import NewControlRow
from thresher.db.postgres.own_tables.lock_rows import LockRows
from thresher.db.postgres.sessions import connect_within
from thresher.db.postgres.store import PostgresSession, PostgresStore
from thresher.db.problem import DatabaseLost
from thresher.election.lease import Lease
from thresher.harvest.grants import relay_grants
from thresher.outbox import Shape
from thresher.relay.names import companions

# Every key that an advisory lock of ours ever had, and what a guess would try.
_KEYS = (
    "hashtext('thresher_relay')",
    "hashtext('thresher_lease')",
    "hashtextextended('thresher archive ' || '\"public\".\"outbox\"', 0)",
    "hashtextextended('thresher_dispatch', to_regclass('outbox')::oid::bigint)",
)
_ANSWER_SECONDS = 5.0
OUTBOX = TableName(table="outbox", schema="public")
# An idle transaction in a session, which neither has an id nor a snapshot.
_HORIZON = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'thresher%' "
    "AND num_nonnulls(backend_xid, backend_xmin) > 0"
)


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    return OutboxPlace(dsn, tmp_path)


@contextmanager
def login(dsn: str, kind: str) -> Iterator[str]:
    """Make a role for a test; yield its connection string."""
    role = f"{kind}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'strange'".encode())
        try:
            yield psycopg.conninfo.make_conninfo(dsn, user=role, password="strange")
        finally:
            owner.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def role_of(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["user"])


@pytest.fixture
def stranger(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of a login without any right on our tables."""
    with login(dsn, "stranger") as own, psycopg.connect(own, autocommit=True) as connection:
        yield connection


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


def test_a_session_counts_by_its_role_not_by_its_name(place: OutboxPlace, stranger: psycopg.Connection[Any]) -> None:
    prefix, own = "thresher/one/", "thresher/one/2"
    with login(place.dsn, "relay") as dsn, login(place.dsn, "other") as other:
        place.sql("\n".join([*companions(OUTBOX, Shape.THRESHER), *archive_ddl(OUTBOX)]))
        for role in (role_of(dsn), role_of(other)):
            place.sql("\n".join(relay_grants(OUTBOX, Shape.THRESHER, role, name="one")))
        stranger.execute(f"SET application_name = '{prefix}1/0'".encode())
        store = PostgresStore(dsn, place.table, make=connect_within(_ANSWER_SECONDS))
        with (
            closing(store.session(f"{own}/d", locate=True)) as session,
            psycopg.connect(place.dsn, application_name=f"{prefix}1/1") as owners,
            psycopg.connect(other, application_name=f"{prefix}1/2") as members,
            closing(store.session(f"{prefix}1/3", locate=True)) as older,
        ):
            assert session.other_sessions(starting=prefix, but=own) == 3
            kept = session.end_sessions(starting=prefix, but=own)
            assert sorted(kept) == sorted(
                f"backend {each.info.backend_pid} of role {each.info.user}" for each in (owners, members)
            )
            with pytest.raises(DatabaseLost):
                older.incarnation()
            place.sql(f"GRANT {role_of(other)} TO {role_of(dsn)}")
            assert len(session.end_sessions(starting=prefix, but=own)) == 1
            owners.close()
            eventually(lambda: session.other_sessions(starting=prefix, but=own) == 0, 60)
            assert session.lock_holders(f"{prefix}1/0") == []
    assert stranger.execute("SELECT 1").fetchall() == [(1,)]


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
