"""The port through which a relay reads, marks, settles and sets aside rows, and keeps its control row.

A store is bound to a database, an outbox table, its shape and how sent rows are settled; it opens sessions by
application name. Every call is durable when it returns, unless its session was opened otherwise. Errors are
`DatabaseRefused` (somebody has to act) or `DatabaseLost` (time may mend it: the caller starts over and recovers).
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

if TYPE_CHECKING:
    import pyarrow as pa

# A pending row as a query returns it: id, create_time, topic, key, value, header_keys, header_values, partition,
# timestamp, flaw.
PendingRow = tuple[Any, ...]


class Settling(enum.StrEnum):
    """What becomes of a row that was sent or filtered."""

    DELETE = "delete"
    STAMP = "stamp"


class DeadFate(NamedTuple):
    """A row to be set aside: its id, its create time in microseconds since 1970, and why."""

    id: int
    create_time: int
    kind: str
    reason: str
    attempts: int
    blocking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What a committed progress record says of rows: ids and create times of those that just go, and the dead.

    Create times are in microseconds since 1970. A row may be named more than once; of dead fates the last one counts.
    """

    ids: Sequence[int]
    create_times: Sequence[int]
    dead: Sequence[DeadFate] = ()


class Settlement(Protocol):
    """The only way in which rows leave the outbox.

    A row is matched by id and create time, so that another one that came back under its id is not touched.
    """

    def settle(self, fates: Fates, *, mark: UUID | None = None, middle: Callable[[], None] = lambda: None) -> int:
        """Settle in one transaction; return how many pending rows it found. Repeating it changes nothing.

        With a mark, a row that just goes has to carry it; a dead one does not. A dead one with a stamp was sent, and
        stays. `middle` is called when some of it is done and none of it is durable.
        """
        ...

    def require_gone(self, ids: Sequence[int], create_times: Sequence[int], *, mark: UUID | None = None) -> None:
        """Raise `DatabaseRefused` if any of the rows is still pending: it would be sent for ever.

        With a mark, rows that do not carry it do not count.
        """
        ...

    def settled(self, ids: Sequence[int], create_times: Sequence[int]) -> int:
        """Return how many of the rows are there with a stamp, whoever has stamped them, or are set aside."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which pending rows a read or a mark is to return: of which buckets, how many, and what is left out.

    At least one row is returned if there is one, whatever its size. A row larger than `largest_bytes` comes without
    its content and with a flaw.
    """

    buckets: Sequence[int]
    rows: int
    batch_bytes: int
    largest_bytes: int
    rows_per_bucket: int | None = None
    # Create times in microseconds since 1970, by id.
    in_flight: Mapping[int, int] = field(default_factory=dict)
    held_topics: Collection[str] = ()
    # Topics and keys of which no more rows are wanted.
    hot_keys: Collection[tuple[str, bytes]] = ()
    # Rows come by id over all buckets, and no row is left out that is before one that comes. Else by id in each bucket.
    by_id: bool = False
    # A sweeper's marks: no row that is younger, by the database's clock, and none that a dispatcher has locked.
    min_age_seconds: float | None = None


class Marks(Protocol):
    """Marks of one relay under one term: a leader that was superseded neither sets nor resets any."""

    def mark(self, wanted: Wanted, leader: UUID) -> Sequence[PendingRow]:
        """Mark the oldest rows that do not carry this leader's mark, and return them: those of a bucket by id.

        Rows in flight, of topics that are held, of hot keys, and of keys that a dead row blocks are left out. A mark of
        anybody else does not count. Raises `Superseded` if the term is another's.
        """
        ...

    def reset(self, ids: Collection[int], leader: UUID) -> int:
        """Take this leader's marks off the rows; return how many there were, none if the term is another's."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRow:
    """A row that was set aside, without its content."""

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
    """A row that was set aside, whole."""

    row: DeadRow
    value: bytes | str | None
    headers: tuple[tuple[str, bytes | str | None], ...]
    # Of headers whose names and values are unequal in number, those that are left: that may be why the row is here.
    names_left: tuple[str, ...] = ()
    values_left: tuple[bytes | str | None, ...] = ()


class DeadRows(Protocol):
    """The rows that were set aside, chosen by topic, kind and ids: None means all."""

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
        """Return a row, whole; several where an id came back."""
        ...

    def replay(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Put rows back under their own ids, with a new create time; return how many.

        Of several with one id, the oldest. Raises `InvalidInput`, and puts nothing back, if an id is taken.
        """
        ...

    def drop(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Remove rows for good; return how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxBacklog:
    """What waits. If it is not `exact`, `pending` and `by_bucket` are estimates."""

    pending: int
    exact: bool
    by_bucket: Mapping[int, int]
    oldest_seconds: float | None
    dead: int
    blocking: int


class PendingReader(Protocol):
    """Reads one shard's pending rows, over sessions of its own; nothing is written. For one thread.

    Every read leaves out the rows in flight, topics that are held, and keys that a dead row blocks. Rows of a bucket
    come by id. A read that meets rows of another table than the one that it was opened on, or of another file of it,
    raises `DatabaseLost`: rows that were sent before may be among them.
    """

    def few(self, wanted: Wanted) -> Sequence[PendingRow]:
        """Return the oldest rows of these buckets, in the order of the buckets, bounded by bytes too."""
        ...

    def by_buckets(self, wanted: Wanted, *, bounded: bool) -> "pa.RecordBatch":
        """Return the oldest rows of each bucket, in the order of the buckets. Bounded: by bytes as well."""
        ...

    def window(
        self, wanted: Wanted, *, after: int, upto: int, oldest_transaction: str
    ) -> "tuple[pa.RecordBatch, bool]":
        """Return the rows with ids in (after, upto], by id; and whether they are all there are.

        A column `age` says how many transactions have begun since the one that wrote the row, and `horizon_age` how
        many since that one.
        """
        ...

    def oldest_transaction(self) -> str | None:
        """Return the oldest transaction that has not ended; None while a dead row blocks a key."""
        ...

    def next_id(self, wanted: Wanted, *, after: int) -> int | None:
        """Return the id of the shard's first row behind this one that is not in flight, though it may be held."""
        ...

    def holds_large_rows(self) -> bool:
        """Whether the table stores anything out of line: then many rows may be many bytes."""
        ...

    def close(self) -> None:
        """Close the sessions."""
        ...


class Occupancy(Protocol):
    """Says which buckets hold pending rows."""

    def occupied(self) -> frozenset[int]:
        """Return the buckets in which any row is pending."""
        ...


class StoreSession(Protocol):
    """One session in the outbox's database. Its calls are for one thread at a time."""

    @property
    def outbox(self) -> TableName:
        """The table; with its schema, if the session was opened to locate it."""
        ...

    @property
    def control(self) -> ControlRows:
        """The control rows beside the outbox."""
        ...

    @property
    def settlement(self) -> Settlement:
        """What settles rows."""
        ...

    @property
    def dead_rows(self) -> DeadRows:
        """The rows that were set aside."""
        ...

    def marks(self, relay: str, term: str, *, table: str | None = None) -> Marks:
        """Return what marks rows for a relay under a term.

        With a table's identity, as `incarnation` tells it, `mark` raises `DatabaseLost` where the table is another.
        """
        ...

    def probe(self, buckets: Collection[int]) -> "Occupancy":
        """Return what says which of the buckets hold anything, for idle looks."""
        ...

    def relation(self) -> Relation | None:
        """Return the table as the catalog describes it; None if there is none."""
        ...

    def create_tables(self) -> None:
        """Create the tables beside the outbox that are missing: control rows and dead rows."""
        ...

    def incarnation(self) -> Incarnation:
        """Return which database this is. Raises `DatabaseLost` on a standby: rows are settled on the primary only."""
        ...

    def end_sessions(self, *, starting: str, but: str) -> None:
        """End other sessions whose application name starts so, except with `but`: one may hold row locks for ever."""
        ...

    def await_dispatchers(self) -> None:
        """Wait until no dispatcher that has begun is still sending rows; one that begins meanwhile is refused."""
        ...

    def lock_holders(self, application: str) -> Sequence[LockHolder]:
        """Return who holds the locks that the sessions with this application name wait for."""
        ...

    def backlog(self) -> OutboxBacklog:
        """Count what waits."""
        ...

    def close(self) -> None:
        """Close the session; what it had not committed did not happen."""
        ...


class OutboxStore(Protocol):
    """An outbox, wherever it is."""

    def session(self, application: str, *, locate: bool = False, durable: bool = True) -> StoreSession:
        """Open a session under an application name, each call a transaction of its own.

        `locate` finds the table's schema first, and raises `DatabaseRefused` if there is no such table. Not `durable`:
        a crash of the database may forget the last calls, which is enough for marks.
        """
        ...

    def require_sessions(self, application: str) -> None:
        """Raise `DatabaseRefused` where a session is not kept for whoever opened it, but shared among transactions."""
        ...

    def pending_reader(self, application: str, *, since: str) -> PendingReader:
        """Open what reads a shard's buckets. Raises `DatabaseLost` unless the database is this incarnation."""
        ...
