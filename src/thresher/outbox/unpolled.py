"""Ways to write messages for a tail only: into the WAL alone, or into a table from which they are deleted at once.

A tail reads both from the WAL. Both are refused while no slot keeps the WAL, because the message would be lost. There
are no receipts, because no row stays in a table.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal, LiteralString

from thresher.core.errors import InvalidInput, shorten
from thresher.db import TableName, statement
from thresher.db.log_emitter import emit_function
from thresher.db.log_names import log_prefix
from thresher.db.postgres.arrays import bigint_array, bytea_array
from thresher.db.postgres.caller_connection import is_tied
from thresher.db.postgres.cursor import BigintArray, ByteaArray, OwnCursor
from thresher.outbox.admission import Limits, Row
from thresher.outbox.log_message import encode_all
from thresher.outbox.shape import Shape

Via = Literal["table", "log"]
# How many bytes of messages one statement carries.
_STATEMENT_BYTES = 4 * 2**20
# How many inserts are sent together.
_PIPELINED = 1000


def require_sensible(via: str, shape: Shape, limits: Limits, *, keep: bool, slot: str | None, tied: bool) -> None:
    """Raise `InvalidInput` if the options contradict each other."""
    if via not in ("table", "log"):
        raise InvalidInput(f"via={shorten(via)}: 'table' or 'log' is needed")
    if via == "table" and keep:
        if slot is not None:
            raise InvalidInput(f"slot={shorten(slot)}: only a tail's outbox has one: give via='log' or keep=False too")
        return
    option = "via='log'" if via == "log" else "keep=False"
    if via == "log" and not keep:
        raise InvalidInput("keep=False with via='log': there is no row to keep or delete; leave keep out")
    if via == "log" and shape is not Shape.THRESHER:
        raise InvalidInput(f"shape={shape.value} with via='log': there is no table; leave shape out")
    if limits.outstanding is not None:
        raise InvalidInput(
            f"Limits(outstanding={limits.outstanding}) with {option}: no rows wait in a table. Limit the WAL that the "
            "server keeps: max_slot_wal_keep_size, or the tail's own limit"
        )
    if not keep and not tied:
        raise InvalidInput(
            "keep=False with require_transaction=False: the row is inserted and deleted in one transaction, and in "
            "autocommit there would be two"
        )


class LogWriter:
    """Writes messages to the WAL only, in the caller's transaction, by the function that seals them."""

    def __init__(self, outbox: TableName) -> None:
        log_prefix(outbox)  # raises if another outbox could share it
        # The statements have parameters: a percent sign in a name must not look like one.
        function = emit_function(outbox).replace("%", "%%")
        self._emit, self._emit_many = (statement(name, emit=function) for name in ("log_emit", "log_emit_many"))

    def write(self, connection: Any, rows: Sequence[Row]) -> None:
        """Write admitted messages in order, all or none of them."""
        self.emit(connection, encode_all(rows))

    def emit(self, connection: Any, contents: Sequence[bytes]) -> None:
        """Write encoded contents in order, all or none of them."""
        cursor = OwnCursor(connection)
        if len(contents) == 1:
            cursor.execute(self._emit, [contents[0]], binary=True)
            return
        # In autocommit each statement is a transaction: to write all or none, one statement has to carry everything.
        most = _STATEMENT_BYTES if is_tied(connection) else sum(map(len, contents)) + 1
        for part in _parts(contents, most):
            cursor.execute(self._emit_many, [ByteaArray(bytea_array(part))])


class InsertDeleteWriter:
    """Inserts and deletes rows in one transaction: they are in the WAL, and the table stays empty."""

    def __init__(self, outbox: TableName) -> None:
        self._forget: LiteralString = statement("outbox_forget", outbox)

    def write(self, connection: Any, insert: LiteralString, rows: Sequence[Sequence[Any]]) -> int:
        """Insert rows and delete them; return how many. In the caller's pipeline, this waits for the database once."""
        ids: list[int] = []
        with connection.pipeline() if len(rows) > 1 else nullcontext():
            for first in range(0, len(rows), _PIPELINED):
                cursors = [OwnCursor(connection) for _ in rows[first : first + _PIPELINED]]
                for cursor, row in zip(cursors, rows[first : first + _PIPELINED], strict=True):
                    cursor.execute(insert, row, binary=True)
                ids += [found[0] for cursor in cursors if (found := cursor.fetchone()) is not None]
        gone = OwnCursor(connection).execute(self._forget, [BigintArray(bigint_array(ids))]).rowcount
        # In a pipeline the number of deleted rows is not known yet.
        return len(ids) if gone < 0 else gone


def _parts(contents: Sequence[bytes], most: int) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[]]
    size = 0
    for content in contents:
        if parts[-1] and size + len(content) > most:
            parts.append([])
            size = 0
        parts[-1].append(content)
        size += len(content)
    return parts
