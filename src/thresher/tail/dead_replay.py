"""Writes messages to the log again that were set aside: of an outbox that no table holds."""

from collections.abc import Sequence
from typing import Any

from thresher.db.log_names import log_prefix
from thresher.db.names import TableName
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dead_rows import PostgresDeadRows
from thresher.db.shape import Shape
from thresher.db.statements import statement
from thresher.outbox.log_message import encode


def replay_to_log(
    connection: Any,
    outbox: TableName,
    *,
    topic: str | None = None,
    kind: str | None = None,
    ids: Sequence[int] | None = None,
) -> int:
    """Put dead rows back as messages in the log, in the caller's transaction; return how many.

    They are new messages then, behind all that were committed before. Raises `InvalidInput` where there are none.
    """
    rows = PostgresDeadRows(connection, outbox, Shape.THRESHER).take(topic=topic, kind=kind, ids=ids)
    prefix = log_prefix(outbox)
    for row in rows:
        OwnCursor(connection).execute(statement("log_emit"), [prefix, encode(row)])
    return len(rows)
