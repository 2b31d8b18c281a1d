"""The outbox writer: stores messages in the caller's own transaction, and does nothing else.

What is promised: a message is stored if and only if the caller's transaction commits. The writer never begins, commits
or rolls back anything, talks to no broker, and checks messages before it touches the connection, so a refusal leaves
the transaction usable. A crash at any point is the transaction's crash: stored with it, or gone with it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

from psycopg import AsyncConnection, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from thresher.core.errors import InvalidInput, ThresherError
from thresher.db import TableName, statement
from thresher.db.arrays import bytea_array, text_array
from thresher.outbox.admission import Admission, Limits, Row
from thresher.outbox.message import Message
from thresher.outbox.shape import Shape

# The header arrays are encoded here and pass through the driver as bytes.
_COPY_TYPES: dict[Shape, tuple[str, ...]] = {
    Shape.THRESHER: ("varchar", "bytea", "bytea", "bytea", "bytea", "int4", "timestamptz"),
    Shape.GOHARVEST: ("timestamptz", "varchar", "varchar", "varchar", "bytea", "bytea"),
}


class NotInTransaction(ThresherError):  # noqa: N818
    """The connection is in autocommit and outside a transaction: the message would not be tied to anything."""


class UnsupportedConnection(InvalidInput):
    """Not a psycopg 3 `Connection`."""


class Outbox:
    """An outbox table that messages are written to. Cheap to make, holds no connection, safe to share by threads.

    `require_transaction=False` says that a message in autocommit, tied to no other change, is meant.
    """

    def __init__(
        self,
        table: str = "outbox",
        *,
        schema: str | None = None,
        shape: Shape = Shape.THRESHER,
        limits: Limits | None = None,
        require_transaction: bool = True,
    ) -> None:
        self.name = TableName(table=table, schema=schema)
        self.shape = Shape(shape)
        self._admission = Admission(self.shape, limits or Limits())
        self._require_transaction = require_transaction
        prefix = "outbox" if self.shape is Shape.THRESHER else "goharvest"
        self._insert: LiteralString = statement(f"{prefix}_insert", self.name)
        self._copy: LiteralString = statement(f"{prefix}_copy", self.name)

    def __repr__(self) -> str:
        return f"Outbox({self.name.quoted()}, shape={self.shape.value})"

    def stash(self, connection: Connection[Any], message: Message) -> None:
        """Store one message in the caller's transaction. The order of calls is the order per key."""
        row = self._admission.row(message)
        self._admit_connection(connection)
        connection.execute(self._insert, row)

    def stash_many(self, connection: Connection[Any], messages: Iterable[Message]) -> int:
        """Store the messages, all or none of them, in one stream; return how many.

        All are checked before the first is sent. The order given is the order per key.
        """
        admit = self._admission.row
        rows = [admit(message) for message in messages]
        self._admit_connection(connection)
        if not rows:
            return 0
        # The caller's row factory is for the caller's rows.
        with connection.cursor(row_factory=tuple_row) as cursor:
            if connection.pgconn.pipeline_status != PipelineStatus.OFF:
                # COPY does not exist inside the caller's pipeline; its inserts travel together anyway.
                cursor.executemany(self._insert, rows)
            else:
                self._stream(cursor, rows)
        return len(rows)

    def _stream(self, cursor: Cursor[Any], rows: Sequence[Row]) -> None:
        if self.shape is Shape.GOHARVEST:
            (now,) = cursor.execute(statement("clock")).fetchone() or (None,)
        with cursor.copy(self._copy) as copy:
            copy.set_types(_COPY_TYPES[self.shape])
            write_row = copy.write_row
            if self.shape is Shape.THRESHER:
                for topic, key, value, names, values, partition, timestamp in rows:
                    write_row((topic, key, value, text_array(names), bytea_array(values), partition, timestamp))
            else:
                for topic, key, value, names, values in rows:
                    write_row((now, topic, key, value, text_array(names), text_array(values)))

    def _admit_connection(self, connection: object) -> None:
        if not isinstance(connection, Connection):
            hint = " (its async twin is not supported yet)" if isinstance(connection, AsyncConnection) else ""
            raise UnsupportedConnection(f"a psycopg Connection is needed, not {type(connection).__name__}{hint}")
        if (
            connection.autocommit
            and self._require_transaction
            and connection.pgconn.transaction_status == TransactionStatus.IDLE
        ):
            raise NotInTransaction(
                "the connection is in autocommit and no transaction is open, so the message would be stored whatever "
                "becomes of your own change. Use 'with connection.transaction():' around both, or make the Outbox "
                "with require_transaction=False if that is what you mean."
            )
