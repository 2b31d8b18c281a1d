"""The table model of the property tests as an `OutboxStore`: the contract suite tests it like Postgres."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import pyarrow as pa

from tests.relay.table_model import DeadEntry, TableModel, Version
from thresher.db.catalog import Relation
from thresher.db.control import ControlRow, Incarnation, NewControlRow, require_same
from thresher.db.lock_holder import LockHolder
from thresher.db.names import TableName
from thresher.db.outbox_store import DeadContent, DeadRow, Fates, OutboxBacklog, PendingRow, Wanted
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.row_schema import READ_SCHEMA
from thresher.db.shape import BUCKETS, bucket_of
from thresher.db.waits import Waits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A time in 2026, for the model's create times.
_FIRST_MICROSECOND = 1_767_225_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message with its content."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | str | None], ...] = ()


@dataclass
class ModelDatabase:
    """A database with one outbox, its clock and its sessions."""

    outbox: TableName
    tables: TableModel[StoredMessage]
    there: bool = True
    sessions: "list[ModelSession]" = field(default_factory=list)
    waits: "dict[tuple[str, int], tuple[Waits, int]]" = field(default_factory=dict)
    ticks: "count[int]" = field(default_factory=lambda: count(_FIRST_MICROSECOND))

    def now(self) -> datetime:
        """Return the time, which rises with each call."""
        return _EPOCH + timedelta(microseconds=next(self.ticks))


def database(outbox: TableName) -> ModelDatabase:
    """Return an empty database."""
    tables: TableModel[StoredMessage] = TableModel(
        bucket=lambda id_, message: id_ % BUCKETS if message.key is None else bucket_of(message.key),
        size=lambda message: len(message.key or b"") + len(message.value),
    )
    return ModelDatabase(outbox, tables)


class ModelStore:
    """Opens sessions in the model."""

    def __init__(self, at: ModelDatabase) -> None:
        self._at = at

    def session(self, application: str, *, locate: bool = False, durable: bool = True) -> "ModelSession":  # noqa: ARG002
        if locate and not self._at.there:
            raise DatabaseRefused(f"there is no table {self._at.outbox}")
        session = ModelSession(self._at, application)
        self._at.sessions.append(session)
        return session

    def require_sessions(self, application: str) -> None:
        """Accept: the model has no pooler that could share sessions."""

    def pending_reader(self, application: str, *, since: str) -> "ModelReader":
        require_same(self.session(application).incarnation().since, since)
        return ModelReader(self._at)


class ModelProbe:
    """Tells which buckets of the model hold rows."""

    def __init__(self, tables: TableModel[StoredMessage], buckets: Collection[int]) -> None:
        self._tables, self._buckets = tables, set(buckets)

    def occupied(self) -> frozenset[int]:
        found = {self._tables.bucket(id_, message) for id_, (_, message) in self._tables.outbox.items()}
        return frozenset(found & self._buckets)


class ModelReader:
    """Reads pending rows of the model, in which no transaction is ever open."""

    def __init__(self, at: ModelDatabase) -> None:
        self._at, self._opened_on = at, at.tables

    @property
    def _tables(self) -> TableModel[StoredMessage]:
        if self._at.tables is not self._opened_on and self._at.tables.outbox:
            raise DatabaseLost("the table was replaced")
        return self._at.tables

    def few(self, wanted: Wanted) -> Sequence[PendingRow]:
        return [_pending(*row) for row in self._tables.pending(wanted)]

    def by_buckets(self, wanted: Wanted, *, bounded: bool) -> pa.RecordBatch:
        return _batch(self.few(wanted if bounded else replace(wanted, batch_bytes=2**62)))

    def window(
        self,
        wanted: Wanted,
        *,
        after: int,
        upto: int,
        oldest_transaction: str,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, bool]:
        every = self.few(replace(wanted, rows=2**62, batch_bytes=2**62))
        rows = sorted(row for row in every if after < row[0] <= upto)
        whole = len(rows) < wanted.rows
        window = _batch(rows[: wanted.rows])
        for name, age in (("age", 2), ("oldest_age", 1)):
            window = window.append_column(name, pa.array([age] * window.num_rows, pa.int32()))
        return window, whole

    def oldest_transaction(self) -> str | None:
        return None if any(entry.fate.blocking for entry in self._tables.dead.values()) else "1"

    def next_id(self, wanted: Wanted, *, after: int) -> int | None:
        rows = (
            id_
            for id_, (time, message) in self._tables.outbox.items()
            if id_ > after
            and wanted.in_flight.get(id_) != time
            and self._tables.bucket(id_, message) in set(wanted.buckets)
        )
        return min(rows, default=None)

    def holds_large_rows(self) -> bool:
        return False

    def close(self) -> None:
        pass


def _pending(id_: int, time: int, row: StoredMessage) -> PendingRow:
    return (id_, _EPOCH + timedelta(microseconds=time), row.topic, row.key, row.value, [], [], None, None, None)


def _batch(rows: Sequence[PendingRow]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(READ_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, READ_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=READ_SCHEMA)


class ModelWaits:
    """What waits in the shards of pipelines."""

    def __init__(self, at: ModelDatabase) -> None:
        self._at = at

    def read(self, name: str) -> Waits:
        topics: dict[str, float] = {}
        rows: dict[Version, float] = {}
        for (of, _), (waits, written) in self._at.waits.items():
            if of == name:
                since = (next(self._at.ticks) - written) / 1_000_000
                for topic, seconds in waits.topics.items():
                    topics[topic] = max(topics.get(topic, 0.0), seconds + since)
                rows |= {row: seconds + since for row, seconds in waits.rows.items()}
        return Waits(topics=topics, rows=rows)

    def keep(self, name: str, shard: int, waits: Waits, *, term: str) -> bool:
        row = self._at.tables.control.get(name)
        if row is None or row.term != term:
            return False
        self._at.waits[name, shard] = waits, next(self._at.ticks)
        return True


class ModelSession:
    """A session that another session may end. It also has control rows, settlement and dead rows."""

    def __init__(self, at: ModelDatabase, application: str) -> None:
        self._at, self.application = at, application
        self.ended = False
        self.outbox = at.outbox

    @property
    def _tables(self) -> TableModel[StoredMessage]:
        if self.ended:
            raise DatabaseLost("the session was ended")
        return self._at.tables

    @property
    def control(self) -> "ModelControl":
        return ModelControl(self._tables, self._at.now)

    @property
    def waits(self) -> "ModelWaits":
        return ModelWaits(self._at)

    @property
    def settlement(self) -> "ModelSession":
        return self

    @property
    def dead_rows(self) -> "ModelDeadRows":
        return ModelDeadRows(self._tables, self._at.ticks)

    def marks(self, relay: str, term: str, *, table: str | None = None) -> "ModelMarks":
        return ModelMarks(self, relay, term, table)

    def younger(self, seconds: float) -> dict[int, int]:
        """Return the rows that are younger than this many seconds, with their create times."""
        now = next(self._at.ticks)
        return {id_: time for id_, (time, _) in self._tables.outbox.items() if abs(now - time) < seconds * 1_000_000}

    @property
    def tables(self) -> TableModel[StoredMessage]:
        return self._tables

    def probe(self, buckets: Collection[int]) -> "ModelProbe":
        return ModelProbe(self._tables, buckets)

    def relation(self) -> Relation | None:
        return Relation() if self._at.there else None

    def create_tables(self) -> None:
        assert self._tables is not None

    def incarnation(self) -> Incarnation:
        now = (self._at.now() - _EPOCH).total_seconds()
        identity = str(id(self._tables))
        return Incarnation(system_id="model", since=identity, now=now, table=identity)

    def end_sessions(self, *, starting: str, but: str) -> Sequence[str]:
        for session in self._at.sessions:
            if session is not self and session.application.startswith(starting):
                session.ended |= not session.application.startswith(but)
        return ()

    def await_dispatchers(self, *, first: bool, within_seconds: float) -> None:
        """Return at once: the model has no dispatchers."""

    def lock_holders(self, application: str) -> Sequence[LockHolder]:  # noqa: ARG002
        # Calls run one after another, so none waits for a lock.
        return ()

    def backlog(self) -> OutboxBacklog:
        tables = self._tables
        by_bucket: dict[int, int] = {}
        for id_, (_, message) in tables.outbox.items():
            bucket = tables.bucket(id_, message)
            by_bucket[bucket] = by_bucket.get(bucket, 0) + 1
        oldest = min((time for time, _ in tables.outbox.values()), default=None)
        return OutboxBacklog(
            pending=len(tables.outbox),
            exact=True,
            by_bucket=by_bucket,
            oldest_seconds=None if oldest is None else (next(self._at.ticks) - oldest) / 1e6,
            dead=len(tables.dead),
            blocking=sum(entry.fate.blocking for entry in tables.dead.values()),
        )

    def close(self) -> None:
        self.ended = True

    def settle(self, fates: Fates, *, mark: UUID | None = None, middle: Callable[[], None] = lambda: None) -> int:
        after = self._tables.snapshot()
        found = after.settle(fates, mark)
        middle()
        self._tables.outbox, self._tables.dead, self._tables.marks = after.outbox, after.dead, after.marks
        return len(found)

    def require_gone(self, ids: Sequence[int], create_times: Sequence[int], *, mark: UUID | None = None) -> None:
        if left := self._tables.left(list(zip(ids, create_times, strict=True)), mark):
            raise DatabaseRefused(f"{len(left)} rows were sent and could not be removed")

    def settled(self, ids: Sequence[int], create_times: Sequence[int]) -> int:
        # The model removes sent rows, and stamps none.
        return sum(version in self._tables.dead for version in zip(ids, create_times, strict=True))


class ModelControl:
    """The control rows, with the database's clock."""

    def __init__(self, tables: TableModel[StoredMessage], now: Callable[[], datetime]) -> None:
        self._tables, self._now = tables, now
        self.lay_out, self.rename, self.adopt = tables.lay_out, tables.rename, tables.adopt

    def exists(self) -> bool:
        return True

    def create(self) -> None:
        pass

    def read(self, name: str) -> ControlRow | None:
        return self._tables.control.get(name)

    def insert(self, row: NewControlRow) -> Sequence[str]:
        return self._tables.insert(row, self._now())

    def take(self, name: str, term: str) -> ControlRow | None:
        return self._tables.take(name, term, self._now())


class ModelMarks:
    """Marks of a relay under a term."""

    def __init__(self, session: ModelSession, relay: str, term: str, table: str | None) -> None:
        self._session, self._relay, self._term, self._table = session, relay, term, table

    def mark(self, wanted: Wanted, leader: UUID) -> Sequence[PendingRow]:
        if wanted.min_age_seconds is not None:
            wanted = replace(wanted, in_flight={**wanted.in_flight, **self._session.younger(wanted.min_age_seconds)})
        found = self._session.tables.mark(wanted, leader, self._relay, self._term)
        if found and self._table not in {None, self._session.incarnation().table}:
            raise DatabaseLost("the table was replaced")
        return [_pending(*row) for row in found]

    def reset(self, ids: Collection[int], leader: UUID) -> int:
        return self._session.tables.reset(ids, leader, self._relay, self._term)


class ModelDeadRows:
    """The dead rows."""

    def __init__(self, tables: TableModel[StoredMessage], ticks: "count[int]") -> None:
        self._tables, self._ticks = tables, ticks

    def find(
        self,
        *,
        topic: str | None = None,
        kind: str | None = None,
        ids: Sequence[int] | None = None,
        rows: int | None = None,
    ) -> list[DeadRow]:
        return [_dead_row(version, self._tables.dead[version]) for version in self._chosen(topic, kind, ids)][:rows]

    def show(self, id_: int) -> list[DeadContent]:
        found = [(version, self._tables.dead[version]) for version in self._chosen(None, None, [id_])]
        return [
            DeadContent(row=_dead_row(version, entry), value=entry.message.value, headers=entry.message.headers)
            for version, entry in found
        ]

    def replay(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        return len(self._tables.replay(self._chosen(topic, kind, ids), next(self._ticks)))

    def drop(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        chosen = self._chosen(topic, kind, ids)
        for version in chosen:
            del self._tables.dead[version]
        return len(chosen)

    def _chosen(self, topic: str | None, kind: str | None, ids: Sequence[int] | None) -> list[Version]:
        return sorted(
            version
            for version, entry in self._tables.dead.items()
            if topic in {None, entry.message.topic}
            and kind in {None, entry.fate.kind}
            and (ids is None or version[0] in ids)
        )


def _dead_row(version: Version, entry: DeadEntry[StoredMessage]) -> DeadRow:
    id_, time = version
    created = _EPOCH + timedelta(microseconds=time)
    _, _, kind, reason, attempts, blocking = entry.fate
    return DeadRow(
        id=id_, create_time=created, topic=entry.message.topic, key=entry.message.key,
        value_bytes=len(entry.message.value), dead_time=created, kind=kind, reason=reason, attempts=attempts,
        blocking=blocking,
    )  # fmt: skip
