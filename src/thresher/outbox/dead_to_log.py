"""Writes dead messages to the WAL again, for an outbox without a table.

This is refused unless a tail reads this outbox from the WAL under the same name, and its slot keeps the WAL. The dead
rows are deleted in the same transaction, so a message that nobody reads would be lost.
"""

from collections.abc import Sequence
from typing import Any

from thresher.core.errors import InvalidInput
from thresher.db import TableName, statement
from thresher.db.log_names import slot_name
from thresher.db.postgres.control import ControlTable, control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dead_rows import PostgresDeadRows
from thresher.db.postgres.sessions import exists
from thresher.outbox.log_message import encode
from thresher.outbox.log_slot import SlotWatch
from thresher.outbox.shape import Shape
from thresher.outbox.unpolled import LogWriter


def replay_to_log(
    connection: Any,
    outbox: TableName,
    *,
    placed: TableName | None = None,
    slot: str | None = None,
    topic: str | None = None,
    kind: str | None = None,
    ids: Sequence[int] | None = None,
) -> int:
    """Write dead rows as new messages to the WAL, in the caller's transaction; return how many.

    `placed` is the outbox's name with the schema of the tables beside it; without it, the search_path decides.
    The new messages come after everything that was committed before. Raises `InvalidInput` if no tail would read them,
    and `NoSlot` without a slot; the caller then has to roll back.
    """
    beside = placed or outbox
    _require_read(connection, outbox, beside)
    SlotWatch(slot or slot_name(outbox)).require(connection)
    writer = LogWriter(beside)
    rows = PostgresDeadRows(connection, beside, Shape.THRESHER).take(topic=topic, kind=kind, ids=ids)
    writer.emit(connection, [_content(row) for row in rows])
    return len(rows)


def _content(row: tuple[Any, ...]) -> bytes:
    dead_topic, _, value, names, values, *_ = row
    if not dead_topic:
        # The message could not be decoded: its bytes were kept unchanged.
        return bytes(value or b"")
    if None in names or len(names) != len(values):
        raise InvalidInput(
            f"a dead row of topic {dead_topic!r} has headers that no message can have: it did not come from the WAL. "
            "Nothing was put back"
        )
    return encode((dead_topic, row[1], value, *row[3:]))


def _require_read(connection: Any, outbox: TableName, beside: TableName) -> None:
    """Raise `InvalidInput` unless a tail reads messages of exactly this outbox name from the WAL."""
    found: list[str] = []
    if ControlTable(connection, beside.schema).exists():
        query = statement("log_tailed", control_table(beside.schema))
        found = [name for (name,) in OwnCursor(connection).execute(query).fetchall()]
    if outbox.quoted() not in found:
        known = f"; a tail reads: {', '.join(found)}. Give the outbox the same name as its tail does" if found else ""
        raise InvalidInput(f"{outbox} is not read from the WAL by a tail{known}. Nothing was put back")
    # In a control row, the name of an outbox with a table always has its schema.
    if outbox.schema is not None and exists(connection, outbox.quoted()):
        raise InvalidInput(
            f"{outbox} is a table: leave --to-log out, and its dead rows are put back there. Nothing was put back"
        )
