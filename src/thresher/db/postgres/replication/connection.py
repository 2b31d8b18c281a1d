"""A connection over which Postgres streams the changes of a slot (COPY BOTH, by libpq). For one thread.

Once the stream has started nothing blocks: `receive` yields the frames that have arrived, `send` queues a frame. The
owner waits on `fileno` in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from thresher.core.errors import PipelineProblem
from thresher.core.secrets import SecretText
from thresher.db.lsn import lsn_number
from thresher.db.names import quoted_name
from thresher.db.postgres.sessions import connect, explain, explained
from thresher.db.problem import DatabaseLost, DatabaseRefused

# The SQLSTATEs of START_REPLICATION: the slot does not exist, its WAL is gone, or another session reads it.
_UNDEFINED, _NOT_READY, _IN_USE = "42704", "55000", "55006"
_NO_RIGHT = "permission denied to start WAL sender"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemIdentity:
    """The system's id, its current timeline, and the end of its WAL."""

    system_id: str
    timeline: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEnd:
    """A timeline that ended at this position: everything written on it after that position is lost."""

    timeline: int
    end: int


class SlotUnusable(DatabaseRefused):
    """The slot does not exist, or the WAL that it needs is gone."""


class SlotBusy(DatabaseLost):
    """Another session reads the slot, or the server has not noticed yet that this session ended."""


class ReplicationConnection:
    """One connection; `start` turns it into a stream. Raises `DatabaseRefused` or `DatabaseLost`."""

    def __init__(self, dsn: SecretText, application: str) -> None:
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
        """Return the socket's file descriptor, to be polled."""
        return self._pgconn.socket

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._pgconn.ssl_in_use

    def identify(self) -> SystemIdentity:
        """Return the system's identity. Must not be called while the connection streams."""
        ((system_id, timeline, position, *_),) = self._rows(b"IDENTIFY_SYSTEM")
        return SystemIdentity(system_id=system_id, timeline=int(timeline), position=lsn_number(position))

    def timeline_ends(self, timeline: int) -> tuple[TimelineEnd, ...]:
        """Return the timelines before this one, the oldest first. Must not be called while the connection streams."""
        if timeline == 1:
            return ()
        ((_, content),) = self._rows(b"TIMELINE_HISTORY %d" % timeline)
        lines = (line.split("\t") for line in content.splitlines() if line.strip() and not line.startswith("#"))
        return tuple(TimelineEnd(timeline=int(line[0]), end=lsn_number(line[1].strip())) for line in lines)

    def start(self, slot: str, publication: str, *, messages: bool) -> None:
        """Begin to stream the changes that the slot's reader has not confirmed.

        Without `messages`, the server sends none of those that `pg_logical_emit_message` writes: any login may write
        them, of up to a gigabyte.
        """
        # The names are quoted identifiers in a list, and the list is a string literal.
        published = quoted_name(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted_name(slot)} LOGICAL 0/0 (proto_version '1', "
            f"publication_names '{published}', messages '{'true' if messages else 'false'}', binary 'true')"
        )
        with explained():
            result = self._pgconn.exec_(command.encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise _not_started(result, slot)
        self._pgconn.nonblocking = 1

    def receive(self) -> Iterator[bytes]:
        """Yield the frames that have arrived. Raises `DatabaseLost` when the stream ends.

        A caller may stop early; the next call yields the remaining frames first.
        """
        get = self._pgconn.get_copy_data
        # Frames that an earlier call left come first. Reading the socket only when none is left bounds libpq's buffer.
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
        """Send queued frames, as far as the socket accepts them; return whether some are left."""
        with explained():
            return self._pgconn.flush() != 0

    def close(self) -> None:
        """Close the connection. Any thread may call this while no other thread uses the connection."""
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
            return DatabaseLost("the database ended the stream of the WAL: it is shutting down, or somebody told it to")
        return stream_problem(*_state_of(result))


def _not_started(result: PGresult, slot: str) -> PipelineProblem:
    state, text = _state_of(result)
    if state == _UNDEFINED:
        return SlotUnusable(f"slot {slot!r} cannot be read: {text}")
    if state == _NOT_READY:
        return SlotUnusable(f"slot {slot!r} cannot be read: {text}; 'thresher tail slot check' says more")
    if state == _IN_USE:
        return SlotBusy(f"slot {slot!r} cannot be read: {text}")
    return explain(state, text)


def stream_problem(state: str | None, text: str) -> PipelineProblem:
    """Return the problem that ended a stream, from the server's SQLSTATE and message."""
    if state == _UNDEFINED:
        # Up to Postgres 17: the slot's WAL begins before the publication was created, and cannot be decoded there.
        return SlotUnusable(
            f"the stream of the WAL ended: {text}. The publication was dropped, or created again after the slot, so "
            "earlier commits cannot be read. Run 'thresher tail slot drop', 'thresher tail slot create' and "
            "'thresher adopt NAME'; rows that are still in a table can be inserted again"
        )
    return explain(state, text)


def _state_of(result: PGresult) -> tuple[str | None, str]:
    error: Any = psycopg.errors.error_from_result(result)
    return error.sqlstate, " ".join(str(error.diag.message_primary or error).split())
