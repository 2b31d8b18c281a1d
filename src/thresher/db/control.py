"""The control row of a pipeline: the outbox that it serves, the term of its leader, and the layout of its shards.

The table of control rows is found by its schema, so that a pipeline without an outbox has a row too. `take` writes a
new leader's term; `lay_out` writes the layout under that term only. A crash between two calls leaves a row that the
next leader can take.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from thresher.core.secrets import SecretText
from thresher.db.problem import DatabaseLost

# The mode of an outbox that a tail reads from the WAL: no relay may poll its table.
TAIL = "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """A pipeline's row as it is stored."""

    outbox: str
    outbox_id: str
    system_id: str
    term: str
    mode: str
    shards: int
    progress_topic_id: str | None
    term_time: datetime
    # Seals the pipeline's progress records. The database draws it when the row is inserted; it never changes.
    secret: SecretText
    # Topic-lock relays only: the incarnation of the database on which all progress was settled.
    settled_on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewControlRow:
    """The row of a pipeline that starts for the first time. `outbox` is the quoted name of its outbox."""

    name: str
    outbox: str
    outbox_id: str
    system_id: str
    term: str
    mode: str
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Identifies the database as it is now, with its time in seconds.

    `since` changes with every restart, failover or restore, and when the table or its file is replaced. `table` is the
    identity of the table and its file; None if there is no table.
    """

    system_id: str
    since: str
    now: float
    table: str | None = None


def require_same(since: str, expected: str) -> None:
    """Raise `DatabaseLost` unless recovery settled this incarnation: in a restored database, sent rows are back."""
    if since != expected:
        raise DatabaseLost("the database or the outbox was restarted or replaced: the shard recovers first")


class ControlRows(Protocol):
    """The control rows in one schema, over one session. Each call is a transaction of its own."""

    def exists(self) -> bool:
        """Whether there is a table of control rows."""
        ...

    def create(self) -> None:
        """Create the table, or add the columns that an older version's table lacks. Safe for concurrent callers."""
        ...

    def read(self, name: str) -> ControlRow | None:
        """Return a pipeline's row; None if the pipeline never ran here."""
        ...

    def insert(self, row: NewControlRow) -> Sequence[str]:
        """Insert the row, unless the name or the outbox has one already; an existing row stays as it is.

        Returns the other names under which the same outbox is relayed. If there are any, nothing was inserted. If two
        callers insert different names at once, one of them finds the other's.
        """
        ...

    def take(self, name: str, term: str) -> ControlRow | None:
        """Write a new leader's term and return the changed row; None if there is no row."""
        ...

    def lay_out(
        self,
        name: str,
        *,
        term: str,
        mode: str,
        shards: int,
        progress_topic_id: str | None,
        settled_on: str | None = None,
    ) -> bool:
        """Write the layout. Returns False, and writes nothing, if the row has another term."""
        ...

    def rename(self, name: str, *, old: str, outbox: str) -> bool:
        """Let an outbox be relayed under another name; False if the old name does not relay it.

        The row keeps the outbox's id. Raises `DatabaseRefused` if the new name belongs to another outbox.
        """
        ...

    def adopt(self, name: str, *, system_id: str) -> bool:
        """Record this database as the row's own and forget the progress topic; False if there is no row."""
        ...
