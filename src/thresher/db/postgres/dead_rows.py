"""The rows that were set aside in Postgres: looked at, put back, or dropped for good.

Callers own their transaction, and so the driver's errors too, except those that say what was asked for wrongly.
"""

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import errors

from thresher.core.errors import InvalidInput
from thresher.db.names import TableName
from thresher.db.outbox_store import DeadContent, DeadRow
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.shape import Shape
from thresher.db.shape_columns import created
from thresher.db.statements import statement


class PostgresDeadRows:
    """The dead rows of one outbox."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape) -> None:
        self._cursor = OwnCursor(connection)
        self._outbox = outbox
        self._shape = shape

    def find(
        self,
        *,
        topic: str | None = None,
        kind: str | None = None,
        ids: Sequence[int] | None = None,
        rows: int | None = None,
    ) -> list[DeadRow]:
        """Return rows by id, then by create time."""
        wanted = {**_wanted(topic, kind, ids), "rows": rows}
        found = self._execute(self._chosen("dead_list"), wanted).fetchall()
        names = DeadRow.__slots__
        return [DeadRow(**dict(zip(names, row, strict=True))) for row in found]

    def count(self) -> int:
        """Return how many rows are set aside."""
        row = self._execute(statement("dead_count", self._outbox), None).fetchone()
        return 0 if row is None else int(row[0])

    def show(self, id_: int) -> list[DeadContent]:
        """Return a row, whole; several where an id came back."""
        contents = []
        for row in self._execute(statement("dead_show", self._outbox), [id_]).fetchall():
            id_, created, topic, key, value, names, values, *fate = row
            size = len(value if isinstance(value, bytes) else value.encode()) if value is not None else None
            fields = dict(zip(DeadRow.__slots__, [id_, created, topic, key, size, *fate], strict=True))
            content = DeadContent(
                row=DeadRow(**fields),
                value=value,
                headers=tuple(zip(names, values, strict=False)),
                names_left=tuple(names[len(values) :]),
                values_left=tuple(values[len(names) :]),
            )
            contents.append(content)
        return contents

    def replay(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Put rows back into the outbox, under their own ids; return how many. Of several with one id, the oldest."""
        wanted = _wanted(topic, kind, ids)
        self._execute(self._chosen("dead_leftover", created=created(self._shape, "o")), wanted)
        try:
            return self._execute(self._chosen(f"{self._shape.prefix}_dead_replay"), wanted).rowcount
        except errors.UniqueViolation as error:
            raise InvalidInput(
                f"a row with the same id is in the outbox: {error.diag.message_detail}; nothing was put back"
            ) from error

    def take(
        self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None
    ) -> list[tuple[Any, ...]]:
        """Remove rows, and return them by id: topic, key, value, names and values of headers, partition, timestamp."""
        return self._execute(self._chosen("outbox_dead_take"), _wanted(topic, kind, ids)).fetchall()

    def drop(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Remove rows for good; return how many."""
        return self._execute(self._chosen("dead_drop"), _wanted(topic, kind, ids)).rowcount

    def _chosen(self, name: str, **parts: str) -> LiteralString:
        """Return a statement on the rows that topic, kind and ids choose."""
        return statement(name, self._outbox, chosen=statement("dead_chosen").strip(), **parts)

    def _execute(self, query: LiteralString, values: Any) -> OwnCursor:
        try:
            self._cursor.execute(query, values)
        except errors.UndefinedColumn as error:
            raise InvalidInput(
                f"{self._outbox} has another shape: give --shape thresher, goharvest or deimos"
            ) from error
        except errors.UndefinedTable as error:
            name = self._outbox.companion("_dead")
            raise InvalidInput(f"there is no table {name}: no relay has run on {self._outbox} yet") from error
        return self._cursor


def _wanted(topic: str | None, kind: str | None, ids: Sequence[int] | None) -> dict[str, Any]:
    return {"topic": topic, "kind": kind, "ids": None if ids is None else list(ids)}
