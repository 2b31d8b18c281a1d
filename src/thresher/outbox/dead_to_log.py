"""Writes messages to the log again that were set aside: of an outbox that no table holds.

Refused unless a tail reads that outbox from the log under the same name, and its slot keeps the log: the dead rows are
removed in the same transaction, and a message that nobody reads would be lost.
"""

from collections.abc import Sequence
from typing import Any

from thresher.core.errors import InvalidInput
from thresher.db import TableName, statement
from thresher.db.log_names import log_prefix, slot_name
from thresher.db.postgres.control import ControlTable, control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dead_rows import PostgresDeadRows
from thresher.db.postgres.sessions import exists
from thresher.outbox.log_message import encode
from thresher.outbox.log_slot import SlotWatch
from thresher.outbox.shape import Shape


def replay_to_log(
    connection: Any,
    outbox: TableName,
    *,
    slot: str | None = None,
    topic: str | None = None,
    kind: str | None = None,
    ids: Sequence[int] | None = None,
) -> int:
    """Put dead rows back as messages in the log, in the caller's transaction; return how many.

    They are new messages then, behind all that were committed before. Raises `InvalidInput` where no tail would read
    them, and `NoSlot`; the caller's transaction has to be rolled back then.
    """
    _require_read(connection, outbox)
    SlotWatch(slot or slot_name(outbox)).require(connection)
    prefix = log_prefix(outbox)
    rows = PostgresDeadRows(connection, outbox, Shape.THRESHER).take(topic=topic, kind=kind, ids=ids)
    for row in rows:
        OwnCursor(connection).execute(statement("log_emit"), [prefix, _content(row)])
    return len(rows)


def _content(row: tuple[Any, ...]) -> bytes:
    dead_topic, _, value, names, values, *_ = row
    if not dead_topic:
        # It could not be read, and is kept as it was.
        return bytes(value or b"")
    if None in names or len(names) != len(values):
        raise InvalidInput(
            f"a row of topic {dead_topic!r} has headers that no message can have: it was not set aside from the log. "
            "Nothing was put back"
        )
    return encode((dead_topic, row[1], value, *row[3:]))


def _require_read(connection: Any, outbox: TableName) -> None:
    """Raise `InvalidInput` unless a tail reads messages of this very name from the log."""
    found: list[str] = []
    if ControlTable(connection, outbox.schema).exists():
        query = statement("log_tailed", control_table(outbox.schema))
        found = [name for (name,) in OwnCursor(connection).execute(query).fetchall()]
    if outbox.quoted() not in found:
        known = f"; those that are: {', '.join(found)}. Name it as its tail does" if found else ""
        raise InvalidInput(f"{outbox} is not read from the log by a tail{known}. Nothing was put back")
    # The name of one with a table always has its schema.
    if outbox.schema is not None and exists(connection, outbox.quoted()):
        raise InvalidInput(
            f"{outbox} is a table: leave --to-log out, and its dead rows are put back there. Nothing was put back"
        )
