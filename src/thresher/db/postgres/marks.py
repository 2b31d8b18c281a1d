"""Marks and resets in Postgres: one statement each, under the relay's term in its control row.

The statement locks the control row against a successor until it has committed. So a leader that was superseded changes
nothing.
"""

from collections.abc import Collection, Sequence
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.pq import Format

from thresher.core.errors import Superseded
from thresher.db.names import TableName
from thresher.db.outbox_store import PendingRow, Wanted
from thresher.db.postgres.arrays import bigint_array
from thresher.db.postgres.control import ControlTable, control_table
from thresher.db.postgres.cursor import BigintArray, OwnCursor
from thresher.db.postgres.head_queries import (
    bounded_query,
    head_by_id_query,
    head_query,
    marked_values,
    require_same_table,
)
from thresher.db.postgres.sessions import explained
from thresher.db.row_schema import FLAW
from thresher.db.shape import Shape
from thresher.db.shape_columns import further_columns, mark_parts
from thresher.db.statements import statement


class PostgresMarks:
    """Marks rows for a relay under a term, over a connection in autocommit."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        outbox: TableName,
        shape: Shape,
        relay: str,
        term: str,
        table: str | None = None,
    ) -> None:
        """`table` is the identity of the table that recovery settled: no row of another table is taken."""
        self._cursor = OwnCursor(connection)
        self._cursor.format = Format.BINARY
        self._control = ControlTable(connection, outbox.schema)
        self._under = {"name": relay, "term": term}
        self._of = {"outbox": outbox.quoted(), "table": table}
        # The statements have parameters: a percent sign in a name must not look like a parameter.
        control = control_table(outbox.schema).quoted().replace("%", "%%")
        parts, more = {"control": control, **mark_parts(shape)}, further_columns(shape, "h")
        # By (by_id, sweeping).
        self._mark = {
            (by_id, sweeping): statement(
                "relay_mark",
                outbox,
                head=bounded_query(head(shape, outbox, marking=True, sweeping=sweeping), shape),
                more=more,
                **parts,
            )
            for by_id, head in ((False, head_query), (True, head_by_id_query))
            for sweeping in (False, True)
        }
        self._reset = statement("relay_reset", outbox, **parts)

    def mark(self, wanted: Wanted, leader: UUID) -> Sequence[PendingRow]:
        """Mark the oldest rows that do not carry this leader's mark, and return them by id."""
        with explained():
            found = self._cursor.execute(*self.statement(wanted, leader), prepare=True).fetchall()
        if not found:
            self._require_term()
        else:
            require_same_table(found[0][FLAW])
        return found

    def statement(self, wanted: Wanted, leader: UUID) -> tuple[LiteralString, dict[str, Any]]:
        """Return the statement that `mark` executes, and its values."""
        values: dict[str, Any] = {
            **marked_values(wanted),
            "leader": leader,
            **self._under,
            **self._of,
        }
        if wanted.min_age_seconds is not None:
            values["min_age"] = wanted.min_age_seconds
        return self._mark[wanted.by_id, wanted.min_age_seconds is not None], values

    def reset(self, ids: Collection[int], leader: UUID) -> int:
        """Remove this leader's marks from the rows; return how many there were."""
        values = {"ids": BigintArray(bigint_array(list(ids))), "leader": leader, **self._under}
        with explained():
            return self._cursor.execute(self._reset, values).rowcount

    def _require_term(self) -> None:
        row = self._control.read(self._under["name"])
        if row is None or row.term != self._under["term"]:
            raise Superseded("a newer relay of the same name has taken over; this one ends")
