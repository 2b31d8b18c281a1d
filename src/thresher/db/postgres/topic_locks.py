"""The locks of an outbox's topics in Postgres, over a connection in autocommit: the adapter of `db.topic_locks`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.pq import Format

from thresher.db.names import TableName
from thresher.db.outbox_store import Fates, PendingRow, Wanted
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.control import control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.head_queries import TOPIC, bounded_query, marked_values, require_same_table, topic_head_query
from thresher.db.postgres.own_tables.lock_rows import LockRows
from thresher.db.postgres.own_tables.lock_table import LockTable, held_lock, lost
from thresher.db.postgres.sessions import explained, own_path, placed
from thresher.db.shape import Shape
from thresher.db.shape_columns import created, further_columns, mark_parts
from thresher.db.statements import statement
from thresher.db.topic_locks import LockState, LockTerms, TopicFigures, TopicLock, lock_name

if TYPE_CHECKING:
    # Needs Arrow, which a program that only creates the table may not have.
    from thresher.db.postgres.settlement import PostgresSettlement

# Rows of a topic are counted up to this number.
_MOST_COUNTED = 10_000
_LONGEST_REASON = 500


# Deimos' own name for the table of locks.
_DEIMOS_LOCKS = "kafka_topic_info"


def _waiting(shape: Shape) -> str:
    """Return the condition for pending rows."""
    return "i.dispatched_time IS NULL" if shape is Shape.THRESHER else "true"


def locks_table(outbox: TableName, shape: Shape) -> str:
    """Return the quoted name of the table of locks."""
    if shape is Shape.DEIMOS:
        return TableName(table=_DEIMOS_LOCKS, schema=outbox.schema).quoted()
    return outbox.companion("_lock")


def registering_lock(outbox: TableName, shape: Shape) -> str:
    """Return the name of the lock under which topics get their slots: of all outboxes whose topics share the table."""
    return f"topics {locks_table(outbox, shape)}"


def locks_ddl(outbox: TableName, shape: Shape) -> list[str]:
    """Return the DDL of the table of locks, and of the index by which topics are found."""
    locks = locks_table(outbox, shape)
    where = f" WHERE {_waiting(shape).removeprefix('i.')}" if shape is Shape.THRESHER else ""
    return [
        statement("topic_lock_create", locks=locks),
        f"{statement('topic_lock_upgrade', locks=locks).strip()};",
        f"CREATE INDEX ON {outbox.quoted()} ({TOPIC[shape]}, id){where};",
    ]


def create_locks(connection: psycopg.Connection[Any], outbox: TableName, shape: Shape) -> None:
    """Create the table of locks and the index by which topics are found, if they are missing. The caller commits."""
    relation = read_relation(connection, outbox)
    (outbox,) = placed(connection, outbox)
    *tables, index = locks_ddl(outbox, shape)
    indexes = () if relation is None else relation.indexes
    there = any(each.columns[:2] == (TOPIC[shape], "id") for each in indexes)
    with connection.transaction(), own_path(connection):
        for each in tables if there else [*tables, index]:
            OwnCursor(connection).execute(each.encode())


class PostgresTopicLocks:
    """The locks of one outbox."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        outbox: TableName,
        shape: Shape,
        settlement: "PostgresSettlement",
        table: str | None = None,
    ) -> None:
        """`table` is the identity of the table that recovery settled: no row of another table is taken."""
        self._connection, self._outbox, self._shape = connection, outbox, shape
        self._settlement = settlement
        self._cursor = OwnCursor(connection)
        self._rows = OwnCursor(connection)
        self._rows.format = Format.BINARY
        # Slots are unique in the table.
        self._registering = partial(LockRows(connection, outbox.schema).only_one, registering_lock(outbox, shape))
        self._of = {"outbox": outbox.quoted(), "table": table}
        self._table = LockTable(connection, locks_table(outbox, shape), control_table(outbox.schema).quoted())
        locks = self._table.locks
        columns = {"topic": TOPIC[shape], "waiting": _waiting(shape)}
        topics = statement("topic_lock_topics", outbox, **columns).replace("%", "%%")
        self._pending = statement("topic_lock_pending", locks=locks, topics=topics)
        self._figures = statement(
            "topic_lock_figures", outbox, locks=locks, topics=topics, created=created(shape, "i"), **columns
        )
        head, more = bounded_query(topic_head_query(shape, outbox), shape), further_columns(shape, "h")
        # Only Deimos' users look at session ids. Other shapes do without: writing them costs more than the read.
        self._take = (
            statement("topic_lock_mark", outbox, locks=locks, head=head, more=more, **mark_parts(shape))
            if shape is Shape.DEIMOS
            else statement("topic_lock_read", locks=locks, head=head)
        )
        several = statement("topic_lock_rows", head=topic_head_query(shape, outbox, topic="n.topic"))
        self._rows_of = bounded_query(several, shape)

    def create(self) -> None:
        """Create the table of locks, or add the columns that it lacks."""
        self._table.create()

    def reset(self) -> None:
        """Free all locks and raise their tokens, which fences every holder."""
        with explained():
            self._cursor.execute(self._table.statement("reset"), {})

    def splits(self) -> Mapping[str, int]:
        """Return the number of parts of each topic that was ever locked."""
        with explained():
            return dict(self._cursor.execute(self._table.statement("splits"), {}).fetchall())

    def pending(self, seconds: float) -> Sequence[LockState]:
        """Return the locks of all topics that have pending rows."""
        with explained():
            found = self._cursor.execute(self._pending, {"seconds": seconds}, prepare=True).fetchall()
        return [
            LockState(
                topic=topic, part=part, parts=parts, token=token, free=free, troubled=troubled,
                missing_seconds=missing, reason=reason, note=note,
            )
            for topic, part, parts, token, free, troubled, missing, reason, note in found
        ]  # fmt: skip

    def register(self, topic: str, parts: int) -> int:
        """Insert the rows of a topic's locks if there are none; return the topic's number of parts."""
        with self._registering():
            row = self._cursor.execute(self._table.statement("recorded"), {"topic": lock_name(topic, 0, 1)}).fetchone()
            if row is None:
                self._table.register(topic, parts)
        return parts if row is None else int(row[0])

    def note(self, missing: Mapping[str, str], terms: LockTerms) -> None:
        """Note that topics without a lock are missing, each with the reason."""
        values = {
            "topics": list(missing), "reasons": [_storable(why) for why in missing.values()],
            "relay": terms.relay, "term": terms.term,
        }  # fmt: skip
        with explained():
            self._cursor.execute(self._table.statement("note"), values)

    def forget(self, topics: Collection[str]) -> None:
        """End the notes of topics that have no pending rows any more."""
        with explained():
            self._cursor.execute(self._table.statement("forget"), {"topics": list(topics)})

    def forget_others(self, pending: Collection[str]) -> None:
        """End the notes of all topics but these, which have pending rows."""
        with explained():
            self._cursor.execute(self._table.statement("forget_others"), {"pending": list(pending)})

    def rows_of(self, topics: Collection[str], wanted: Wanted) -> Sequence[PendingRow]:
        """Return the oldest pending rows of topics without a lock."""
        values = {"topics": list(topics), **marked_values(wanted), **self._of}
        with explained():
            return _of_the_same_table(self._rows.execute(self._rows_of, values).fetchall())

    def set_aside(
        self, notes: Mapping[str, int], fates: Fates, terms: LockTerms, middle: Callable[[], None] = lambda: None
    ) -> int | None:
        """Settle dead rows of topics without a lock in one transaction; None if a note is not as it was."""
        values = {
            "topics": list(notes), "tokens": list(notes.values()), "relay": terms.relay, "term": terms.term
        }  # fmt: skip
        with explained(), self._connection.transaction():
            row = self._cursor.execute(self._table.statement("noted"), values).fetchone()
            if row is None or row[0] != len(notes):
                return None
            return self._settlement.settle(fates, middle=middle)

    def acquire(self, wanted: LockState, terms: LockTerms) -> TopicLock | None:
        """Take a lock that is free or has expired; None if it is held, or the topic has another number of parts."""
        values = {
            "name": wanted.name, "parts": wanted.parts, "owner": terms.owner, "relay": terms.relay, "term": terms.term,
            "seconds": terms.seconds,
        }  # fmt: skip
        with explained():
            row = self._cursor.execute(self._table.statement("acquire"), values, prepare=True).fetchone()
        if row is None:
            return None
        token, slot, retries, missing, waiting, last = row
        return TopicLock(
            topic=wanted.topic, part=wanted.part, parts=wanted.parts, token=token, slot=slot, retries=retries,
            missing_seconds=missing or 0.0, waiting_seconds=waiting or 0.0, waiting_id=last or 0,
        )  # fmt: skip

    def require(self, lock: TopicLock) -> None:
        """Raise `LockLost` if another process has taken the lock."""
        with explained():
            found = self._cursor.execute(self._table.statement("require"), held_lock(lock), prepare=True).fetchone()
        if found is None:
            raise lost(lock)

    def renew(self, lock: TopicLock) -> None:
        """Restart the time after which the lock expires."""
        self._table.change("renew", lock)

    def release(self, lock: TopicLock, *, waiting: tuple[int, int] | None = None) -> None:
        """Free the lock without an error."""
        first, last = waiting or (None, None)
        self._table.change("release", lock, first=first, last=last)

    def fail(self, lock: TopicLock, reason: str, *, missing: bool = False, early_seconds: float = 0.0) -> None:
        """Free the lock with an error: nobody takes it before it has expired."""
        self._table.change("fail", lock, reason=_storable(reason), missing=missing, early=early_seconds)

    def take(self, lock: TopicLock, wanted: Wanted, session_id: UUID) -> Sequence[PendingRow]:
        """Return the topic's oldest pending rows by id; in Deimos' table the rows get the session id."""
        values = {
            "topic": lock.topic,
            **marked_values(wanted),
            "leader": session_id,
            **held_lock(lock),
            **self._of,
        }
        with explained():
            found = _of_the_same_table(self._rows.execute(self._take, values, prepare=True).fetchall())
        if not found:
            self.require(lock)
        return found

    def settle(self, lock: TopicLock, fates: Fates, middle: Callable[[], None] = lambda: None) -> int:
        """Settle the fates of a committed progress record and renew the lock, both or neither."""
        with explained(), self._connection.transaction():
            self._table.change("renew", lock)
            return self._settlement.settle(fates, middle=middle)

    def split(self, topic: str, parts: int, held: Sequence[TopicLock]) -> None:
        """Record another number of parts for a topic, all of whose locks are held, and free them."""
        with self._registering():
            for lock in held:
                self._table.change("release", lock, first=None, last=None)
            self._cursor.execute(self._table.statement("split"), {"topic": topic, "parts": parts})
            self._table.register(topic, parts)

    def figures(self, topics: int) -> Sequence[TopicFigures]:
        """Return the state of at most so many topics with pending rows, held locks or errors."""
        with explained():
            found = self._cursor.execute(self._figures, {"most": _MOST_COUNTED, "topics": topics}).fetchall()
        names = ("topic", "pending", "exact", "oldest_seconds", "locked", "errored", "parts", "retries", "reason")
        return [TopicFigures(**dict(zip(names, row, strict=True))) for row in found]


def _storable(reason: str) -> str:
    return reason.replace("\0", "�")[:_LONGEST_REASON]


def _of_the_same_table(found: list[PendingRow]) -> Sequence[PendingRow]:
    # Imported here: a program that only creates the table of locks may not have Arrow.
    from thresher.db.row_schema import FLAW  # noqa: PLC0415

    if found:
        require_same_table(found[0][FLAW])
    return found
