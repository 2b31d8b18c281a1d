"""Sessions of the driver: a statement is answered in time, or the session is closed."""

import threading
from contextlib import closing

import psycopg
import pytest

from tests.faults.mute_proxy import MuteProxy
from tests.processes import eventually
from thresher.db import TableName
from thresher.db.lock_holder import LockHolder
from thresher.db.postgres.sessions import connect_within
from thresher.db.postgres.store import PostgresSession, PostgresStore
from thresher.db.problem import DatabaseLost
from thresher.outbox import create_schema

OUTBOX = TableName(table="outbox")


def bounded(dsn: str, application: str, seconds: float) -> PostgresSession:
    return PostgresStore(dsn, OUTBOX, make=connect_within(seconds)).session(application)


def test_a_database_that_never_answers_is_given_up(dsn: str) -> None:
    with MuteProxy(dsn) as proxy, closing(bounded(proxy.dsn, "driver", 1.0)) as session:
        assert session.incarnation().now
        proxy.mute()
        with pytest.raises(DatabaseLost, match="no answer in 3 s"):
            session.incarnation()
        with pytest.raises(DatabaseLost, match="the connection is"):
            session.incarnation()


def test_the_server_ends_a_statement_that_waits_for_a_lock(dsn: str) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'driver' AND wait_event_type = 'Lock'"
    with psycopg.connect(dsn) as locker, closing(bounded(dsn, "driver", 0.3)) as session:
        create_schema(locker, OUTBOX)
        locker.commit()
        locker.execute("LOCK TABLE outbox")
        with pytest.raises(DatabaseLost, match="statement timeout"):
            session.backlog()
        assert locker.execute(waiting).fetchone() == (0,), "no session still waits for the lock"


def test_the_holder_of_a_lock_that_sessions_await_is_known(dsn: str) -> None:
    with (
        psycopg.connect(dsn, application_name="somebody") as locker,
        closing(bounded(dsn, "shard", 60.0)) as blocked,
        closing(bounded(dsn, "driver", 60.0)) as asking,
    ):
        create_schema(locker, OUTBOX)
        locker.commit()
        assert asking.lock_holders("shard") == []
        locker.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        found: list[LockHolder] = []

        def held() -> bool:
            found[:] = asking.lock_holders("shard")
            return bool(found)

        def release() -> None:
            eventually(held, 60)
            locker.rollback()

        thread = threading.Thread(target=release, daemon=True)
        thread.start()
        blocked.connection.execute("SELECT count(*) FROM public.outbox")
        thread.join(60)
        (holder,) = found
        assert (holder.pid, holder.user) == (locker.info.backend_pid, locker.info.user)
        assert (holder.application, holder.state) == ("somebody", "idle in transaction")
        assert holder.query == "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"
        assert asking.lock_holders("driver") == []
