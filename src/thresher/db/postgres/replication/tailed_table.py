"""A table that a tail reads from the WAL: how its old rows are deleted, and how a relay and a tail hand it over."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from thresher.core.errors import Superseded
from thresher.db.lsn import lsn_number, lsn_text
from thresher.db.names import TableName
from thresher.db.postgres.control import control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import explained
from thresher.db.problem import DatabaseLost
from thresher.db.shape import Shape
from thresher.db.shape_columns import created, mark_parts
from thresher.db.statements import statement

# How long the end of the WAL may take to be flushed, if commits do not wait for it (synchronous_commit = off).
_FLUSH_SECONDS, _LOOK_SECONDS = 10.0, 0.05
# The highest age that 32 bits can tell.
_TELLABLE = 2_000_000_000
# Later trims pass over a row that has to stay for at least this long.
FAR_SECONDS = 3600.0


class Trimmed(NamedTuple):
    """The numbers of rows deleted and looked at; and the floor: all rows up to this id have to stay for long."""

    deleted: int
    looked: int
    floor: int


class TailedTable:
    """One table, over one connection in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape) -> None:
        self._connection = connection
        self._outbox = outbox
        self._unstamped = mark_parts(shape)["unstamped"]
        self._created = created(shape, "o")

    def mark(self) -> tuple[str, int]:
        """Return the oldest transaction that is still running, and a position after the commits of all older ones."""
        row = self._one("tail_trim_mark")
        return str(row[0]), lsn_number(row[1])

    def trim(self, xid: str, *, first_xid: int, keep_seconds: float, rows: int, floor: int) -> Trimmed:
        """Delete rows that transactions older than `xid` wrote, `keep_seconds` after their create time.

        Only the first `rows` rows after the id `floor` are looked at. Rows of transactions before `first_xid` stay.
        """
        # A row's xmin has 32 bits: ages beyond two billion cannot be told.
        first = max(first_xid, int(xid) - _TELLABLE)
        asked = {"xid": xid, "first_xid": str(first), "keep_seconds": keep_seconds, "far_seconds": FAR_SECONDS}
        asked |= {"rows": rows, "floor": floor}
        return Trimmed(*self._one("tail_trim", asked, created=self._created))

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Block writers for the duration of the block, in one transaction; give a flushed WAL position.

        Every commit of a writer is entirely before or entirely after this position.
        """
        with explained(), self._connection.transaction():
            OwnCursor(self._connection).execute(statement("tail_lock", self._outbox))
            end = lsn_number(self._one("tail_log_end")[0])
            deadline = time.monotonic() + _FLUSH_SECONDS
            while lsn_number(self._one("tail_log_end")[1]) < end:
                if time.monotonic() > deadline:
                    raise DatabaseLost("the end of the WAL did not get to the disk in time: try again")
                time.sleep(_LOOK_SECONDS)
            yield end

    def pending(self) -> int:
        """Return how many rows a relay would still send, up to 10,001."""
        return int(self._one("tail_pending", unstamped=self._unstamped)[0])

    def older(self, first_xid: int) -> int:
        """Return how many rows of earlier transactions a relay would send, up to 10,001."""
        return int(self._one("tail_older", {"first_xid": str(first_xid)}, unstamped=self._unstamped)[0])

    def log_end(self) -> int:
        """Return the flushed end of the WAL."""
        return lsn_number(self._one("tail_log_end")[1])

    def empty(self) -> int:
        """Delete the rows that a relay would send, and return how many there were."""
        with explained():
            return OwnCursor(self._connection).execute(
                statement("tail_empty", self._outbox, unstamped=self._unstamped)
            ).rowcount  # fmt: skip

    def advance(self, slot: str, lsn: int) -> None:
        """Advance a slot to this position. Raises `DatabaseLost` if the slot is being read."""
        self._one("tail_slot_advance", {"slot": slot, "lsn": lsn_text(lsn)})

    def hand_over(self, name: str, *, term: str, mode: str) -> None:
        """Hand the control row to a relay or a tail, in the caller's transaction. Raises `Superseded`."""
        with explained():
            query = statement("tail_control", control_table(self._outbox.schema))
            values = {"name": name, "term": term, "mode": mode}
            found = OwnCursor(self._connection).execute(query, values).rowcount
        if not found:
            raise Superseded("another process has taken the outbox over meanwhile: nothing was changed")

    def _one(self, name: str, values: Any = None, **parts: str) -> tuple[Any, ...]:
        with explained():
            row = OwnCursor(self._connection).execute(statement(name, self._outbox, **parts), values).fetchone()
        if row is None:
            raise DatabaseLost("the database returned no row where one was expected")
        return row
