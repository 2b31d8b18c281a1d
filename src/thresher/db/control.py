"""The control row of a pipeline: what it serves, whose term it is, and how its shards are laid out.

The rows are located by a schema, so that a pipeline without an outbox has one too. A term is written by `take`; the
layout is written under that term only. A crash between two of these calls leaves a row that the next leader takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from thresher.db.problem import DatabaseLost

# The mode of an outbox that is read from the log: no relay may poll its table.
TAIL = "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """The row as it is."""

    outbox: str
    outbox_id: str
    system_id: str
    term: str
    mode: str
    shards: int
    progress_topic_id: str | None
    term_time: datetime
    # What the pipeline's progress is sealed with: drawn by the database with the row, and never changed.
    secret: str = field(repr=False)
    # The incarnation of the database on which all progress was settled: of relays that share topics by locks alone.
    settled_on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewControlRow:
    """The row of a pipeline that starts for the first time. `outbox` is the quoted name of what it serves."""

    name: str
    outbox: str
    outbox_id: str
    system_id: str
    term: str
    mode: str
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Which database of which system this is, since when it is so, and its time in seconds.

    `since` changes with the table too: `table` says which one it is, with which file. None where there is no table.
    """

    system_id: str
    since: str
    now: float
    table: str | None = None


def require_same(since: str, expected: str) -> None:
    """Raise `DatabaseLost` unless this is the database that recovery settled: in a restored one, sent rows are back."""
    if since != expected:
        raise DatabaseLost("the database or the outbox was restarted or replaced: the shard recovers first")


class ControlRows(Protocol):
    """The control rows in one schema, over one session. Each call is a transaction of its own."""

    def exists(self) -> bool:
        """Whether there is a table of control rows."""
        ...

    def create(self) -> None:
        """Create the table if there is none, or what an older one lacks. Two callers at once are safe."""
        ...

    def read(self, name: str) -> ControlRow | None:
        """Return a pipeline's row; None if it never ran here."""
        ...

    def insert(self, row: NewControlRow) -> Sequence[str]:
        """Insert the row unless the name has one already, which is left as it is.

        Returns the other names under which the same outbox is relayed; if there are any, nothing is inserted. Of two
        callers with different names, one finds the other.
        """
        ...

    def take(self, name: str, term: str) -> ControlRow | None:
        """Write a new leader's term and return the row as it is from then on; None if there is none."""
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
        """Write the layout; False, and nothing is written, if the term is not the row's any more."""
        ...

    def rename(self, name: str, *, old: str, outbox: str) -> bool:
        """Let an outbox be relayed under another name; False if the old name does not relay it.

        The row keeps what identifies the outbox. If the new name has a row already, the old one's row is deleted.
        """
        ...

    def adopt(self, name: str, *, system_id: str) -> bool:
        """Let the row belong to this database and forget its progress topic; False if there is no row."""
        ...
