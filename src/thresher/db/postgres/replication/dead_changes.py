"""Writes dead rows for changes that were read from the WAL, whether the row is in a table or not."""

from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from thresher.db.names import TableName
from thresher.db.outbox_store import PendingRow
from thresher.db.postgres.arrays import bytea_array, encoded_text_array, received_array
from thresher.db.postgres.cursor import ByteaArray, OwnCursor, TextArray
from thresher.db.postgres.sessions import explained
from thresher.db.shape import Shape
from thresher.db.shape_columns import created
from thresher.db.statements import statement

# A dead row's kind, reason, attempts, and whether it blocks its key.
Why = tuple[str, str, int, bool]


class DeadChanges:
    """Writes dead rows over one connection in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape, *, in_table: bool) -> None:
        """`in_table`: the rows may be in the outbox's table, and are deleted from it."""
        self._connection, self._shape = connection, shape
        self._insert = statement(f"{shape.prefix}_tail_dead", outbox)
        self._gone = statement("tail_dead_gone", outbox, created=created(shape, "o")) if in_table else None

    def set_aside(self, changes: Iterable[tuple[PendingRow, Why]], middle: Callable[[], None] = lambda: None) -> None:
        """Write dead rows in one transaction, durably. Idempotent.

        `middle` is called after the statements and before the commit.
        """
        with explained(), self._connection.transaction():
            cursor = OwnCursor(self._connection)
            for row, why in changes:
                values = _values(row, why, self._shape)
                cursor.execute(self._insert, values)
                if self._gone is not None:
                    cursor.execute(self._gone, {name: values[name] for name in ("id", "create_time")})
            middle()


def _values(row: PendingRow, why: Why, shape: Shape) -> dict[str, Any]:
    id_, create_time, topic, key, value, names, values, partition, timestamp, *more = row
    kind, reason, attempts, blocking = why
    if len(more) > 2:
        # The row has a flaw: the original header names, header values and timestamp are kept beside it.
        names, values, timestamp = more[2]
        stored_names, stored_values = received_array(names, text=True), received_array(values, text=_in_text(shape))
    else:
        stored_names = encoded_text_array([_storable(name) for name in names])
        stored_values = encoded_text_array(values) if _in_text(shape) else bytea_array(values)
    return {
        "id": id_,
        "create_time": create_time,
        # A message in the WAL may contain NUL characters, which Postgres' text type cannot.
        "topic": topic.replace("\0", "�"),
        "key": key,
        "value": value,
        "names": TextArray(stored_names),
        "values": TextArray(stored_values) if _in_text(shape) else ByteaArray(stored_values),
        "partition": partition,
        "timestamp": timestamp,
        "partition_key": more[1] if len(more) > 1 else None,
        "kind": str(kind),
        "reason": reason,
        "attempts": attempts,
        "blocking": blocking,
    }


def _in_text(shape: Shape) -> bool:
    """Whether the table's header values are texts."""
    return shape is Shape.GOHARVEST


def _storable(name: str | None) -> bytes | None:
    return None if name is None else name.replace("\0", "�").encode()
