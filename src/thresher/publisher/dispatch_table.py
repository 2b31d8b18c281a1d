"""The rows of receipts in the database: locked while a dispatcher sends them, stamped once the brokers have acked.

1. A row is locked if it is committed, has the receipt's create time, no stamp and no sweeper's mark. Rows that another
   sender has locked are skipped. So of two dispatchers, or of a dispatcher and a sweeper, only one sends a row.
2. The lock lasts until the transaction ends. A dispatcher that dies loses its locks with its connection. A dispatcher
   that becomes unreachable loses them by idle_in_transaction_session_timeout. The row is then pending as before.
3. Each such transaction first locks the outbox as a lock of its rows does (ROW SHARE), then reads the relay's mode.
   Rows are locked only if the relay is a sweeper, or if surely no relay has run yet. A relay in another mode writes its
   mode, and before it sends waits until the transactions that have such a lock by then have ended.
"""

import os
import queue
import selectors
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import Connection, IsolationLevel, errors
from psycopg.pq import Format, TransactionStatus

from thresher.core.errors import InvalidInput, ThresherError
from thresher.core.fork_safe_lock import ForkSafeLock
from thresher.core.topic_name import is_topic
from thresher.db import TableName, statement
from thresher.db.postgres.arrays import bigint_array
from thresher.db.postgres.caller_connection import require_connection
from thresher.db.postgres.control import modes_function, modes_name
from thresher.db.postgres.cursor import BigintArray, OwnCursor, TimestampArray
from thresher.db.postgres.sessions import explained
from thresher.outbox.message import Message
from thresher.outbox.shape import MOST_HEADERS

Connect = Callable[[], Connection[Any]]
# A row's id and create time.
Version = tuple[int, datetime]

_CONTROL = "thresher_relay"
# The mode of a relay with `dispatch: immediate`.
_SWEEPER = "immediate"
# A topic with this suffix may be a relay's progress topic. Only a sweeper can tell, so rows for it are left to it.
_PROGRESS = ".progress"
# Postgres counts time from the year 2000.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class DispatchRefused(InvalidInput):
    """A dispatcher cannot be used with this outbox or its relay. Nothing was sent: the relay sends the rows."""


class NotNow(ThresherError):  # noqa: N818
    """Nothing was locked or sent, for a temporary reason that is no error. The sweeper sends the rows."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRow:
    """A row that this dispatcher has locked. Without a message it cannot be sent, and is left to the sweeper."""

    id: int
    message: Message | None


class DispatchTable:
    """An outbox, over at most `connections` connections of its own. Safe from any thread."""

    def __init__(self, connect: Connect, table: TableName, *, connections: int, idle_seconds: float) -> None:
        self._connect, self._table, self._most = connect, table, connections
        self._idle_milliseconds = str(int(idle_seconds * 1000))
        self._begin = statement("dispatch_begin", table)
        self._lock, self._stamp = (
            statement("dispatch_lock", table, most_headers=str(MOST_HEADERS)),
            statement("dispatch_stamp", table),
        )
        self._pid, self._changing = 0, ForkSafeLock()
        self._slots: queue.LifoQueue[Connection[Any] | None] = queue.LifoQueue()

    @contextmanager
    def locked(
        self, versions: Sequence[Version], *, within_seconds: float, ready: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[list[LockedRow], Callable[[Sequence[int]], int]]]:
        """Lock rows for a block; yield them by id with a function that stamps them. The end of the block commits.

        The function returns how many rows it has stamped. `ready` is called once a connection is free; it may raise to
        end the call. Raises `NotNow` if no connection is free within this time. Raises `DispatchRefused`,
        `DatabaseLost` or `DatabaseRefused`. After a database error nothing is stamped, unless the commit itself
        failed: then that is unknown.
        """
        rights = "'thresher schema print --grants --dispatcher-role ROLE' prints the grants"
        with explained(rights), self._connection(within_seconds, ready) as connection, connection.transaction():
            cursor = OwnCursor(connection)
            try:
                cursor.execute(self._begin, {"idle": self._idle_milliseconds})
            except errors.UndefinedTable as error:
                raise self._no_table() from error
            self._require_sweeper(cursor)
            cursor.format = Format.BINARY
            found = cursor.execute(self._lock, _pairs(versions)).fetchall()
            yield [_locked(*row) for row in found], lambda ids: self._stamped(cursor, ids)

    def close(self) -> None:
        """Close the idle connections. Idempotent. After a fork, the parent's connections stay open."""
        with self._changing:
            slots, own = self._slots, self._pid == os.getpid()
            self._pid, self._slots = 0, queue.LifoQueue()
        while own:
            try:
                connection = slots.get_nowait()
            except queue.Empty:
                return
            if connection is not None:
                connection.close()

    def _stamped(self, cursor: OwnCursor, ids: Sequence[int]) -> int:
        return cursor.execute(self._stamp, {"ids": BigintArray(bigint_array(ids))}).rowcount

    @contextmanager
    def _connection(self, within_seconds: float, ready: Callable[[], None]) -> Iterator[Connection[Any]]:
        """Yield a connection, and keep it for later calls unless the block fails."""
        slots = self._own_slots()
        try:
            kept, keeps = slots.get(timeout=max(0.0, within_seconds)), False
        except queue.Empty:
            why = f"all {self._most} connections of the dispatcher were in use: raise connections"
            raise NotNow(why) from None
        try:
            ready()
            if kept is not None and not _stands(kept):
                kept.close()
                kept = None
            kept = kept or self._opened()
            yield kept
            keeps = True
        except (NotNow, DispatchRefused):
            # The transaction was rolled back, and the connection is still usable.
            keeps = True
            raise
        finally:
            if not keeps and kept is not None:
                kept.close()
            slots.put(kept if keeps else None)

    def _own_slots(self) -> "queue.LifoQueue[Connection[Any] | None]":
        """Return the pool: idle connections, and None for each that may be opened. After a fork a new pool is made."""
        with self._changing:
            if self._pid != os.getpid():
                self._pid, self._slots = os.getpid(), queue.LifoQueue()
                for _ in range(self._most):
                    self._slots.put(None)
            return self._slots

    def _opened(self) -> Connection[Any]:
        connection = require_connection(self._connect())
        try:
            _require_idle(connection)
            connection.isolation_level = IsolationLevel.READ_COMMITTED
        except BaseException:
            connection.close()
            raise
        return connection

    def _no_table(self) -> DispatchRefused:
        return DispatchRefused(f"there is no table {self._table} that the dispatcher's connection can see")

    def _require_sweeper(self, cursor: OwnCursor) -> None:
        """Raise `DispatchRefused` unless the relay is a sweeper, or no relay has run yet."""
        asked = {"control": _CONTROL, "outbox": self._table.quoted(), "function": modes_name(self._table)}
        beside = cursor.execute(statement("dispatch_relay"), asked).fetchone()
        if beside is None:
            raise self._no_table()
        schema, there, readable, callable_ = beside
        if not there:
            return
        located = TableName(table=self._table.table, schema=schema)
        if not readable and not callable_:
            raise DispatchRefused(
                f"the dispatcher's role may not ask how the relay of {located} sends: 'thresher schema print --grants "
                f"--dispatcher-role ROLE' prints the function, and the grants of the role"
            )
        found = self._modes(cursor, located, readable=readable)
        for name, mode in found:
            if mode != _SWEEPER:
                raise DispatchRefused(
                    f"the relay {name} of {located} is no sweeper (its mode is {mode}), and would send rows twice "
                    "beside a dispatcher: run it with 'dispatch: immediate', or do without the dispatcher"
                )
        if not found and not readable:
            # A row that a policy hides from the function's owner looks the same.
            raise NotNow(f"no relay of {located} has run yet")

    def _modes(self, cursor: OwnCursor, located: TableName, *, readable: bool) -> list[tuple[str, str]]:
        """Return the names and modes of the outbox's relays. A role that is not the table's owner asks the function."""
        if readable:
            control = TableName(table=_CONTROL, schema=located.schema)
            return cursor.execute(statement("dispatch_mode", control), [located.quoted()]).fetchall()
        function = modes_function(located)
        return cursor.execute(statement("function_call", function=str(function), arguments="")).fetchall()


def _require_idle(connection: Connection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise InvalidInput("the dispatcher's connection is in a transaction: let connect open a new connection")


def _stands(connection: Connection[Any]) -> bool:
    """Whether an idle connection is still open. If the server closed it, its socket is readable."""
    if connection.closed:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        return not selector.select(0)


def _pairs(versions: Sequence[Version]) -> dict[str, Any]:
    times = [(create_time - _EPOCH) // _MICROSECOND for _, create_time in versions]
    return {
        "ids": BigintArray(bigint_array([id_ for id_, _ in versions])),
        "create_times": TimestampArray(bigint_array(times, timestamps=True)),
    }


def _locked(id_: int, topic: str, *rest: Any) -> LockedRow:
    key, value, names, values, partition, timestamp, fit = rest
    fit = fit and len(names) == len(values) and None not in names and (partition is None or partition >= 0)
    if not fit or not is_topic(topic) or topic.endswith(_PROGRESS):
        return LockedRow(id=id_, message=None)
    return LockedRow(
        id=id_,
        message=Message(
            topic=topic,
            key=key,
            value=value,
            headers=tuple(zip(names, values, strict=True)),
            partition=partition,
            timestamp=timestamp,
        ),
    )
