"""The port through which a relay reads, marks and settles rows, and keeps its control row.

A store belongs to one database, one outbox table, its shape and its way of settling; it opens sessions by application
name. Every call is durable when it returns, unless its session was opened with `durable=False`. Errors are
`DatabaseRefused` (somebody has to act) or `DatabaseLost` (a retry may help: the caller starts over and recovers).
"""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from thresher.db.catalog import Relation
from thresher.db.control import ControlRows, Incarnation
from thresher.db.lock_holder import LockHolder
from thresher.db.names import TableName
from thresher.db.waits import KeptWaits

if TYPE_CHECKING:
    import pyarrow as pa

# A pending row as a query returns it: id, create_time, topic, key, value, header_keys, header_values, partition,
# timestamp, flaw.
PendingRow = tuple[Any, ...]


class Settling(enum.StrEnum):
    """How a row that was sent or filtered is settled: it is deleted, or its dispatched time is set (a stamp)."""

    DELETE = "delete"
    STAMP = "stamp"


class DeadFate(NamedTuple):
    """A row that goes to the dead-letter table: its id, its create time in microseconds since 1970, and the reason."""

    id: int
    create_time: int
    kind: str
    reason: str
    attempts: int
    blocking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """The fates of rows in a committed progress record: ids and create times of sent or filtered rows, and dead rows.

    Create times are in microseconds since 1970. A row may be named more than once; its last dead fate counts.
    """

    ids: Sequence[int]
    create_times: Sequence[int]
    dead: Sequence[DeadFate] = ()


class Settlement(Protocol):
    """The only way in which rows leave the outbox.

    A row is matched by id and create time, so that another row with a reused id is not touched.
    """

    def settle(self, fates: Fates, *, mark: UUID | None = None, middle: Callable[[], None] = lambda: None) -> int:
        """Settle in one transaction; return how many pending rows were found. Idempotent.

        With `mark`, a sent or filtered row is settled only if it carries this mark; a dead row need not. A dead row
        with a stamp was sent, and stays. `middle` is called halfway, before anything is committed.
        """
        ...

    def require_gone(self, ids: Sequence[int], create_times: Sequence[int], *, mark: UUID | None = None) -> None:
        """Raise `DatabaseRefused` if any of the rows is still pending: it would be sent again and again.

        With `mark`, only rows that carry this mark count.
        """
        ...

    def settled(self, ids: Sequence[int], create_times: Sequence[int]) -> int:
        """Return how many of the rows are stamped, by any sender, or dead."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The pending rows that a read or a mark returns: from which buckets, how many, and which are left out.

    At least one row is returned if there is one, whatever its size. A row larger than `largest_bytes` is returned
    without its content and with a flaw: the reason why it cannot be sent.
    """

    buckets: Sequence[int]
    rows: int
    batch_bytes: int
    largest_bytes: int
    rows_per_bucket: int | None = None
    # Create times in microseconds since 1970, by id.
    in_flight: Mapping[int, int] = field(default_factory=dict)
    held_topics: Collection[str] = ()
    # True: only rows of the held topics are wanted. False: all others.
    among: bool = False
    # Topics and keys of which no more rows are wanted.
    hot_keys: Collection[tuple[str, bytes]] = ()
    # True: rows are returned by id over all buckets, with no gap before the last one. False: by id within each bucket.
    by_id: bool = False
    # For a sweeper: leaves out younger rows, by the database's clock, and rows that a dispatcher has locked.
    min_age_seconds: float | None = None


class Marks(Protocol):
    """The marks of one relay under one term. A leader that was superseded neither sets nor resets marks."""

    def mark(self, wanted: Wanted, leader: UUID) -> Sequence[PendingRow]:
        """Mark the oldest rows that do not carry this leader's mark, and return them; the rows of a bucket by id.

        Left out are rows in flight, rows of held topics and hot keys, and rows of keys that a dead row blocks. Marks of
        other leaders are overwritten. Raises `Superseded` if the control row has another term.
        """
        ...

    def reset(self, ids: Collection[int], leader: UUID) -> int:
        """Remove this leader's marks from the rows; return how many there were, 0 if the row has another term."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRow:
    """A row of the dead-letter table, without its content."""

    id: int
    create_time: datetime
    topic: str
    key: bytes | str | None
    value_bytes: int | None
    dead_time: datetime
    kind: str
    reason: str
    attempts: int
    blocking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadContent:
    """A row of the dead-letter table, with its content."""

    row: DeadRow
    value: bytes | str | None
    headers: tuple[tuple[str, bytes | str | None], ...]
    # Of headers whose names and values are unequal in number, those that are left: that may be why the row is here.
    names_left: tuple[str, ...] = ()
    values_left: tuple[bytes | str | None, ...] = ()


class DeadRows(Protocol):
    """The dead-letter table of one outbox. Rows are selected by topic, kind and ids: None means all."""

    def find(
        self,
        *,
        topic: str | None = None,
        kind: str | None = None,
        ids: Sequence[int] | None = None,
        rows: int | None = None,
    ) -> list[DeadRow]:
        """Return rows by id, then by create time."""
        ...

    def show(self, id_: int) -> list[DeadContent]:
        """Return the row with this id and its content; several if the id was reused."""
        ...

    def replay(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Put rows back under their own ids, with a new create time; return how many.

        Of several rows with one id, the oldest is put back. Raises `InvalidInput`, and puts nothing back, if the outbox
        has a row with one of the ids.
        """
        ...

    def drop(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Delete rows for good; return how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxBacklog:
    """The numbers of pending and dead rows. If not `exact`, `pending` and `by_bucket` are estimates."""

    pending: int
    exact: bool
    by_bucket: Mapping[int, int]
    oldest_seconds: float | None
    dead: int
    blocking: int


class PendingReader(Protocol):
    """Reads one shard's pending rows, over sessions of its own; writes nothing. For one thread.

    Every read leaves out rows in flight, held topics, and keys that a dead row blocks. Rows of a bucket are returned by
    id. If the table or its file was replaced since the reader was opened, a read that finds rows raises `DatabaseLost`:
    rows that were sent before may be among them.
    """

    def few(self, wanted: Wanted) -> Sequence[PendingRow]:
        """Return the oldest rows of these buckets, bucket by bucket, bounded by rows and by bytes."""
        ...

    def by_buckets(self, wanted: Wanted, *, bounded: bool) -> "pa.RecordBatch":
        """Return the oldest rows of each bucket, bucket by bucket. `bounded`: by bytes as well as by rows."""
        ...

    def window(
        self, wanted: Wanted, *, after: int, upto: int, oldest_transaction: str
    ) -> "tuple[pa.RecordBatch, bool]":
        """Return the rows with ids in (after, upto], by id; and whether the result is complete.

        The column `age` is the number of transactions begun since the one that wrote the row; `oldest_age` is the
        number begun since `oldest_transaction`.
        """
        ...

    def oldest_transaction(self) -> str | None:
        """Return the oldest transaction that is still running; None while a dead row blocks a key."""
        ...

    def next_id(self, wanted: Wanted, *, after: int) -> int | None:
        """Return the id of the shard's first row after this id that is not in flight; its topic may be held."""
        ...

    def holds_large_rows(self) -> bool:
        """Whether the table has TOASTed content: then a batch of many rows may be large."""
        ...

    def close(self) -> None:
        """Close the sessions."""
        ...


class Occupancy(Protocol):
    """Tells which buckets have pending rows."""

    def occupied(self) -> frozenset[int]:
        """Return the buckets that have a pending row."""
        ...


class StoreSession(Protocol):
    """One session in the outbox's database. Its calls are for one thread at a time."""

    @property
    def outbox(self) -> TableName:
        """The table, with its schema."""
        ...

    @property
    def control(self) -> ControlRows:
        """The control rows in the outbox's schema."""
        ...

    @property
    def waits(self) -> KeptWaits:
        """What waits in the shards of the pipelines of the outbox's schema."""
        ...

    @property
    def settlement(self) -> Settlement:
        """Settles rows of the outbox."""
        ...

    @property
    def dead_rows(self) -> DeadRows:
        """The dead-letter table of the outbox."""
        ...

    def marks(self, relay: str, term: str, *, table: str | None = None) -> Marks:
        """Return the marks of a relay under a term.

        With `table`, an identity from `incarnation`, `mark` raises `DatabaseLost` if the table was replaced.
        """
        ...

    def probe(self, buckets: Collection[int]) -> "Occupancy":
        """Return a cheap probe that tells which of the buckets have pending rows: the poll of an idle shard."""
        ...

    def relation(self) -> Relation | None:
        """Return the table as the catalog describes it; None if there is none."""
        ...

    def create_tables(self) -> None:
        """Create the tables of control rows, of waits and of dead rows, if they are missing."""
        ...

    def incarnation(self) -> Incarnation:
        """Identify the database as it is now. Raises `DatabaseLost` on a standby: only the primary settles rows."""
        ...

    def end_sessions(self, *, starting: str, but: str) -> Sequence[str]:
        """End other sessions whose application name starts with `starting`, except those that start with `but`.

        The session of a stopped process would keep its row locks for ever. Sessions of roles that may not lead are
        none of ours, and stay. Returns which of ours this role may not end.
        """
        ...

    def await_dispatchers(self, *, first: bool, within_seconds: float) -> None:
        """Wait until every dispatcher has ended that began before the mode in the control row was written.

        `first` says that no mode was recorded before, so that dispatchers may have begun without reading one. Raises
        `DatabaseLost` with the sessions that have not ended in time.
        """
        ...

    def lock_holders(self, application: str) -> Sequence[LockHolder]:
        """Return the holders of the locks for which the sessions with this application name wait."""
        ...

    def backlog(self) -> OutboxBacklog:
        """Count pending and dead rows."""
        ...

    def close(self) -> None:
        """Close the session; uncommitted changes are rolled back."""
        ...


class OutboxStore(Protocol):
    """An outbox in some database."""

    def session(self, application: str, *, locate: bool = False, durable: bool = True) -> StoreSession:
        """Open a session under an application name; each of its calls is a transaction.

        `locate` raises `DatabaseRefused` if there is no such table. With
        `durable=False`, a crash of the database may lose the last calls; marks may be lost.
        """
        ...

    def require_sessions(self, application: str) -> None:
        """Raise `DatabaseRefused` if a pooler shares sessions among the transactions of several clients."""
        ...

    def pending_reader(self, application: str, *, since: str) -> PendingReader:
        """Open a reader of a shard's buckets. Raises `DatabaseLost` unless the incarnation is still `since`."""
        ...
