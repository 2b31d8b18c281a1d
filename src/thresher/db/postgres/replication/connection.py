"""A connection over which Postgres streams the changes of a slot (COPY BOTH, by libpq). For one thread.

Nothing blocks: `receive` returns what has come, `send` queues. Whoever owns it waits for `fileno` in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.core.errors import PipelineProblem
from thresher.db.lsn import lsn_number
from thresher.db.names import quoted_name
from thresher.db.postgres.sessions import connect, explain, explained
from thresher.db.problem import DatabaseLost, DatabaseRefused

# What START_REPLICATION fails with: a slot that is not there, one whose log is gone, and one that somebody reads.
_UNDEFINED, _NOT_READY, _IN_USE = "42704", "55000", "55006"
_NO_RIGHT = "permission denied to start WAL sender"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemIdentity:
    """Which system this is, on which timeline, and how far its log goes."""

    system_id: str
    timeline: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEnd:
    """A timeline that was left at this position: what was written on it behind that is lost."""

    timeline: int
    end: int


class SlotUnusable(DatabaseRefused):
    """The slot is not there, or the log that it needs is not."""


class SlotBusy(DatabaseLost):
    """Somebody else reads the slot, or the server has not noticed yet that it stopped."""


class ReplicationConnection:
    """One connection; `start` turns it into a stream. Raises `DatabaseRefused` or `DatabaseLost`."""

    def __init__(self, dsn: str, application: str) -> None:
        try:
            self._connection = connect(dsn, application, replication="database")
        except DatabaseLost as error:
            if _NO_RIGHT in str(error):
                raise DatabaseRefused(
                    f"{error}: the tail's user must be allowed to replicate: ALTER ROLE … REPLICATION (on Amazon RDS: "
                    "GRANT rds_replication TO …)"
                ) from error
            raise
        self._pgconn = self._connection.pgconn

    def fileno(self) -> int:
        """Return the socket, to be polled."""
        return self._pgconn.socket

    @property
    def encrypted(self) -> bool:
        """Whether the connection is by TLS."""
        return self._pgconn.ssl_in_use

    def identify(self) -> SystemIdentity:
        """Return which system this is. Not while it streams."""
        ((system_id, timeline, position, *_),) = self._rows(b"IDENTIFY_SYSTEM")
        return SystemIdentity(system_id=system_id, timeline=int(timeline), position=lsn_number(position))

    def timeline_ends(self, timeline: int) -> tuple[TimelineEnd, ...]:
        """Return the timelines before this one, the oldest first. Not while it streams."""
        if timeline == 1:
            return ()
        ((_, content),) = self._rows(b"TIMELINE_HISTORY %d" % timeline)
        lines = (line.split("\t") for line in content.splitlines() if line.strip() and not line.startswith("#"))
        return tuple(TimelineEnd(timeline=int(line[0]), end=lsn_number(line[1].strip())) for line in lines)

    def start(self, slot: str, publication: str) -> None:
        """Begin to stream what the slot has not been confirmed of."""
        # Names are identifiers inside of a list that is a literal.
        published = quoted_name(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted_name(slot)} LOGICAL 0/0 (proto_version '1', "
            f"publication_names '{published}', messages 'true', binary 'true')"
        )
        with explained():
            result = self._pgconn.exec_(command.encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise _not_started(result, slot)
        self._pgconn.nonblocking = 1

    def receive(self) -> Iterator[bytes]:
        """Yield the frames that have come so far. Raises `DatabaseLost` when the stream ends.

        A caller may stop in between, and go on later with what is left.
        """
        get = self._pgconn.get_copy_data
        # What is left from before comes first: only with nothing left, libpq's buffer does not grow.
        for look in (False, True):
            with explained():
                if look:
                    self._pgconn.consume_input()
                size, data = get(1)
                while size > 0:
                    yield bytes(data)
                    size, data = get(1)
            if size < 0:
                raise self._ended()

    def send(self, frame: bytes) -> None:
        """Queue a frame."""
        with explained():
            self._pgconn.put_copy_data(frame)

    def flush(self) -> bool:
        """Send what is queued, as far as the socket takes it; return whether something is left."""
        with explained():
            return self._pgconn.flush() != 0

    def close(self) -> None:
        """Close the connection. Any thread may, if no other uses it."""
        self._connection.close()

    def _rows(self, command: bytes) -> list[list[str]]:
        with explained():
            result = self._pgconn.exec_(command)
            if result.status != ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(result)
        return [
            [(result.get_value(row, column) or b"").decode() for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def _ended(self) -> PipelineProblem:
        """Return why the server has ended the stream."""
        with explained():
            result = self._pgconn.get_result()
        if result is None or result.status not in {ExecStatus.FATAL_ERROR, ExecStatus.NONFATAL_ERROR}:
            return DatabaseLost("the database ended the stream of the log: it is shutting down, or somebody told it to")
        return _explain(result)


def _not_started(result: PGresult, slot: str) -> PipelineProblem:
    state, text = _state_of(result)
    if state == _UNDEFINED:
        return SlotUnusable(f"slot {slot!r} cannot be read: {text}")
    if state == _NOT_READY:
        return SlotUnusable(f"slot {slot!r} cannot be read: {text}; 'thresher tail slot check' says more")
    if state == _IN_USE:
        return SlotBusy(f"slot {slot!r} cannot be read: {text}")
    return explain(state, text)


def _explain(result: PGresult) -> PipelineProblem:
    state, text = _state_of(result)
    if state == _UNDEFINED:
        # Up to Postgres 17: the log goes on from before its publication was made, and cannot be read there.
        return SlotUnusable(
            f"the stream of the log ended: {text}. A publication that was dropped, or made anew behind the slot, does "
            "not serve what was committed before: 'thresher tail slot drop', 'thresher tail slot create', and "
            "'thresher adopt NAME'; rows that are still in a table can be inserted anew"
        )
    return explain(state, text)


def _state_of(result: PGresult) -> tuple[str | None, str]:
    error: Any = psycopg.errors.error_from_result(result)
    return error.sqlstate, " ".join(str(error.diag.message_primary or error).split())
