"""The dead-letter table of an outbox in Postgres: rows are listed, put back, or deleted for good.

Callers own their transaction and handle the driver's errors. Errors in the caller's request are raised as
`InvalidInput`. An operator may not touch the tables: it calls functions, whose bodies are the same statements.
"""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import errors

from thresher.core.errors import InvalidInput
from thresher.db.names import TableName
from thresher.db.outbox_store import DeadContent, DeadRow
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import exists
from thresher.db.shape import Shape
from thresher.db.shape_columns import created
from thresher.db.statements import statement

# The statements of each operation, in order; the result is the last one's.
DeadStatements = Mapping[str, Sequence[LiteralString]]

_CHOSEN = statement("dead_chosen").strip()


def dead_statements(outbox: TableName, shape: Shape) -> DeadStatements:
    """Return the statements on the tables: list, show, replay and drop."""
    chosen = {"chosen": _CHOSEN}
    leftover = statement("dead_leftover", outbox, created=created(shape, "o"), **chosen)
    return {
        "list": [statement("dead_list", outbox, **chosen)],
        "show": [statement("dead_show", outbox)],
        "replay": [leftover, statement(f"{shape.prefix}_dead_replay", outbox, **chosen)],
        "drop": [statement("dead_drop", outbox, **chosen)],
    }


class PostgresDeadRows:
    """The dead rows of one outbox."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        outbox: TableName,
        shape: Shape,
        *,
        statements: DeadStatements | None = None,
    ) -> None:
        """`statements` replaces the statements on the tables."""
        self._connection, self._cursor = connection, OwnCursor(connection)
        self._outbox = outbox
        self._statements = {**dead_statements(outbox, shape), **(statements or {})}

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
        found = self._run("list", wanted).fetchall()
        names = DeadRow.__slots__
        return [DeadRow(**dict(zip(names, row, strict=True))) for row in found]

    def count(self) -> int:
        """Return the number of dead rows."""
        row = self._execute(statement("dead_count", self._outbox), None).fetchone()
        return 0 if row is None else int(row[0])

    def show(self, id_: int) -> list[DeadContent]:
        """Return the row with this id and its content; several if the id was reused."""
        contents = []
        for row in self._run("show", {"id": id_}).fetchall():
            id_, created, topic, key, value, names, values, *fate = row
            size = len(value if isinstance(value, bytes) else value.encode()) if value is not None else None
            fields = dict(zip(DeadRow.__slots__, [id_, created, topic, key, size, *fate], strict=True))
            # Names and values may differ in number: that may be why the row is dead.
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
        """Put rows back into the outbox under their own ids; return how many. Of rows with one id, only the oldest."""
        if not exists(self._connection, self._outbox.quoted()):
            raise InvalidInput(
                f"there is no outbox table {self._outbox}: if its messages are in the WAL (via: log), use --to-log; "
                "nothing was put back"
            )
        try:
            return _changed(self._run("replay", _wanted(topic, kind, ids)))
        except errors.UniqueViolation as error:
            raise InvalidInput(
                f"a row with the same id is in the outbox: {error.diag.message_detail}; nothing was put back"
            ) from error

    def take(
        self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None
    ) -> list[tuple[Any, ...]]:
        """Delete rows and return them by id: topic, key, value, header names, header values, partition, timestamp."""
        query = statement("outbox_dead_take", self._outbox, chosen=_CHOSEN)
        return self._execute(query, _wanted(topic, kind, ids)).fetchall()

    def drop(self, *, topic: str | None = None, kind: str | None = None, ids: Sequence[int] | None = None) -> int:
        """Delete rows for good; return how many."""
        return _changed(self._run("drop", _wanted(topic, kind, ids)))

    def _run(self, what: str, values: dict[str, Any]) -> OwnCursor:
        for query in self._statements[what]:
            self._execute(query, values)
        return self._cursor

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


def _changed(cursor: OwnCursor) -> int:
    """Return how many rows a statement has changed, or a function says that it has."""
    if cursor.description is None:
        return cursor.rowcount
    row = cursor.fetchone()
    return 0 if row is None else int(row[0])
