"""When a standby checks a lease again, and when it takes a lease that was not renewed."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors

from tests.processes import eventually
from thresher.election.lease import Lease, Row, Seen, next_look
from thresher.election.neli_clients import beat_seconds, session_seconds
from thresher.election.settings import ElectionSettings

ROW = Row(holder="somebody", token=7, until="2026-01-01 00:00:00+00", span_seconds=1.5, left_seconds=1.2)


def test_a_lease_is_checked_often_and_at_its_expiry() -> None:
    assert next_look(ROW) == 0.2
    assert next_look(replace(ROW, left_seconds=0.07)) == 0.07
    assert 0 < next_look(replace(ROW, left_seconds=0.0)) < 0.05


def test_a_lease_that_is_renewed_is_never_stale() -> None:
    seen = Seen(row=ROW, since=0.0)
    for number in range(1, 20):
        seen = seen.of(replace(ROW, until=f"{number}"), float(number))
        assert not seen.stale(number + 1.0)


def test_a_lease_is_stale_after_twice_its_length() -> None:
    seen = Seen(row=ROW, since=10.0)
    seen = seen.of(replace(ROW, left_seconds=3600.0), 12.9)
    assert not seen.stale(12.9)
    assert seen.stale(13.1)


@given(st.floats(0.2, 600))
def test_a_group_leader_steps_down_before_its_session_ends(timeout: float) -> None:
    settings = ElectionSettings(heartbeat_timeout_seconds=timeout)
    # The Kafka client sends heartbeats every 0.3 s.
    assert timeout + 0.3 < session_seconds(timeout)
    assert beat_seconds(settings) <= timeout / 2


class Replica:
    """A connection to a hot standby server: reads succeed, writes are refused."""

    def __init__(self, counted: list[float]) -> None:
        counted.append(time.monotonic())

    def look(self) -> Row:
        return replace(ROW, left_seconds=-1.0)

    def take(self, *_: Any, **__: Any) -> int:
        raise errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction")

    def close(self) -> None: ...


class Ended:
    """A connection to an expired lease: the first request gets it."""

    def __init__(self) -> None:
        self.taken = self.released = 0

    def look(self) -> Row:
        return replace(ROW, left_seconds=-1.0)

    def take(self, *_: Any, **__: Any) -> int:
        self.taken += 1
        return 8

    def renew(self, *_: Any) -> bool:
        return True

    def release(self, *_: Any) -> None:
        self.released += 1

    def close(self) -> None: ...


def lease_over(connect: Callable[[], Any]) -> Lease:
    return Lease(dsn="", name="r", connect=connect)


def test_an_expired_lease_is_taken_and_a_stop_releases_it() -> None:
    connection = Ended()
    lease = lease_over(lambda: connection)
    lease.start()
    eventually(lambda: lease.leader_id is not None, 10.0)
    assert (connection.taken, connection.released) == (1, 0)
    lease.stop()
    assert (connection.taken, connection.released) == (1, 1)


def test_a_read_only_lease_table_is_retried_with_back_off(caplog: pytest.LogCaptureFixture) -> None:
    connected: list[float] = []
    caplog.set_level(logging.INFO)
    lease = lease_over(lambda: Replica(connected))
    lease.start()
    eventually(lambda: len(connected) >= 4, 30.0)
    assert lease.trouble == "cannot execute UPDATE in a read-only transaction"
    lease.stop()
    # At least 0.1, 0.2 and 0.4 s.
    assert connected[3] - connected[0] >= 0.7
    assert [record.getMessage() for record in caplog.records] == [
        "the lease waits for its database: cannot execute UPDATE in a read-only transaction"
    ]


def test_a_former_leader_retries_a_refusing_database_with_back_off() -> None:
    tried: list[float] = []

    def connect() -> Any:
        tried.append(time.monotonic())
        if len(tried) > 1:
            raise errors.OperationalError("the server is away")
        return Breaking()

    lease = lease_over(connect)
    lease.start()
    eventually(lambda: len(tried) >= 5, 30.0)
    lease.stop()
    assert tried[4] - tried[1] >= 0.2 + 0.4 + 0.8


class Breaking:
    """A connection that works once, and then breaks."""

    def __init__(self) -> None:
        self.looks = 0

    def leader(self, row: Row) -> str:
        return row.holder

    def look(self) -> Row:
        self.looks += 1
        if self.looks > 1:
            raise errors.OperationalError("the server closed the connection")
        return replace(ROW, left_seconds=0.1)

    def close(self) -> None: ...
