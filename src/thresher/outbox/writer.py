"""The outbox writer: stores messages in the caller's own transaction, and does nothing else.

What is promised: a message is stored if and only if the caller's transaction commits. The writer never begins, commits
or rolls back anything, talks to no broker, and checks messages before it touches the connection, so a refusal leaves
the transaction usable. A crash at any point is the transaction's crash: stored with it, or gone with it.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from functools import lru_cache
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.pq import PipelineStatus

from thresher.core.errors import ThresherError, shorten
from thresher.db import TableName, statement
from thresher.db.postgres.arrays import bytea_array, text_array
from thresher.db.postgres.caller_connection import NotInTransaction, UnsupportedConnection, is_tied, require_connection
from thresher.db.postgres.cursor import ByteaArray, OwnCursor, TextArray
from thresher.outbox.admission import Admission, InvalidMessage, Limits, Row
from thresher.outbox.message import Message, with_event_id
from thresher.outbox.shape import Shape

# The header arrays are encoded here and pass through the driver as bytes.
_COPY_TYPES: dict[Shape, tuple[str, ...]] = {
    Shape.THRESHER: ("varchar", "bytea", "bytea", "bytea", "bytea", "int4", "timestamptz"),
    Shape.GOHARVEST: ("timestamptz", "varchar", "varchar", "varchar", "bytea", "bytea"),
    Shape.DEIMOS: ("varchar", "bytea", "bytea", "varchar", "timestamp", "timestamp"),
}

__all__ = ["MessageNotStored", "NotInTransaction", "Outbox", "UnsupportedConnection"]


class MessageNotStored(ThresherError):  # noqa: N818
    """The database took the statement and stored less: the transaction must not be committed."""


class Outbox:
    """An outbox table that messages are written to. Cheap to make, holds no connection, safe to share by threads.

    `require_transaction=False` says that a message in autocommit, tied to no other change, is meant. With `event_ids`
    each message has a header `event-id`, by which an inbox tells repeats; one that has it keeps it.
    """

    def __init__(
        self,
        table: str = "outbox",
        *,
        schema: str | None = None,
        shape: Shape = Shape.THRESHER,
        limits: Limits | None = None,
        require_transaction: bool = True,
        event_ids: bool = False,
    ) -> None:
        self.name = TableName(table=table, schema=schema)
        self.shape = Shape(shape)
        self._admission = Admission(self.shape, limits or Limits())
        self._require_transaction = require_transaction
        self._identified: Callable[[Message], Message] = with_event_id if event_ids else lambda message: message
        self._insert: LiteralString = statement(f"{self.shape.prefix}_insert", self.name)
        self._copy: LiteralString = statement(f"{self.shape.prefix}_copy", self.name)

    def __repr__(self) -> str:
        return f"Outbox({self.name.quoted()}, shape={self.shape.value})"

    def stash(self, connection: Connection[Any], message: Message) -> None:
        """Store one message in the caller's transaction. The order of calls is the order per key."""
        row = self._admission.row(self._identified(message))
        self._admit_connection(connection)
        codec = _admit_encoding(connection, [row])
        cursor = OwnCursor(connection)
        cursor.execute(self._insert, _parameters(row, codec))
        self._require_stored(connection, cursor, 1)

    def stash_many(self, connection: Connection[Any], messages: Iterable[Message]) -> int:
        """Store the messages, all or none of them, in one stream; return how many.

        All are checked before the first is sent. The order given is the order per key.
        """
        admit, identified = self._admission.row, self._identified
        rows = [admit(identified(message)) for message in messages]
        self._admit_connection(connection)
        if not rows:
            return 0
        codec = _admit_encoding(connection, rows)
        cursor = OwnCursor(connection)
        if connection.pgconn.pipeline_status == PipelineStatus.OFF:
            self._stream(cursor, rows, codec)
        else:
            # COPY does not exist inside the caller's pipeline; its inserts travel together anyway.
            cursor.executemany(self._insert, [_parameters(row, codec) for row in rows])
        self._require_stored(connection, cursor, len(rows))
        return len(rows)

    def _stream(self, cursor: OwnCursor, rows: Sequence[Row], codec: str) -> None:
        if self.shape is not Shape.THRESHER:
            (now,) = cursor.execute(statement("clock")).fetchone() or (None,)
        with cursor.copy(self._copy) as copy:
            copy.set_types(_COPY_TYPES[self.shape])
            write_row = copy.write_row
            # The names of headers repeat from message to message.
            named = lru_cache(maxsize=1024)(lambda names: text_array(names, codec))
            if self.shape is Shape.THRESHER:
                for topic, key, value, names, values, partition, timestamp in rows:
                    write_row((topic, key, value, named(names), bytea_array(values), partition, timestamp))
            elif self.shape is Shape.DEIMOS:
                # Without a time zone, in UTC, as Rails writes it.
                at = now.astimezone(UTC).replace(tzinfo=None)
                for topic, key, value, _, _, partition_key in rows:
                    write_row((topic, key, value, partition_key, at, at))
            else:
                for topic, key, value, names, values in rows:
                    write_row((now, topic, key, value, named(names), text_array(values, codec)))

    def _admit_connection(self, connection: Connection[Any]) -> None:
        if not is_tied(require_connection(connection)) and self._require_transaction:
            raise NotInTransaction(
                "the connection is in autocommit and no transaction is open, so the message would be stored whatever "
                "becomes of your own change. Use 'with connection.transaction():' around both, or make the Outbox "
                "with require_transaction=False if that is what you mean."
            )

    def _require_stored(self, connection: Connection[Any], cursor: OwnCursor, count: int) -> None:
        # In a pipeline the answer comes later, to the caller.
        if connection.pgconn.pipeline_status == PipelineStatus.OFF and cursor.rowcount != count:
            raise MessageNotStored(
                f"{count} message(s) were sent and {cursor.rowcount} stored in {self.name}: a rule or trigger on the "
                "table drops rows. Roll back, and see 'thresher schema check'."
            )


def _parameters(row: Row, codec: str) -> list[Any]:
    """Return the row for an INSERT: its header lists as arrays that no adapter of the caller touches."""
    topic, key, value, names, values, *rest = row
    if len(rest) == 1:
        # Deimos' rows have a partition key, and no columns for headers.
        return [topic, key, value, *rest]
    # Only goharvest's rows have text for a key, and then for everything.
    contents = TextArray(text_array(values, codec)) if isinstance(key, str) else ByteaArray(bytea_array(values))
    return [topic, key, value, TextArray(text_array(names, codec)), contents, *rest]


def _admit_encoding(connection: Connection[Any], rows: Sequence[Row]) -> str:
    """Return the codec in which text travels; refuse text that it, or the database, cannot hold."""
    status = connection.info.parameter_status
    server, client = status("server_encoding"), status("client_encoding")
    if server == client == "UTF8":
        return "utf-8"
    # Between two other encodings the server converts, and we cannot tell what it can: ASCII is safe.
    codec = connection.info.encoding if server in {"UTF8", client} else "ascii"
    for row in rows:
        for content in (*row[1:3], *row[3], *row[4], *row[5:]):
            if isinstance(content, str):
                try:
                    content.encode(codec)
                except UnicodeEncodeError:
                    rule = f"the text cannot be stored (database encoding {server}, client encoding {client})"
                    raise InvalidMessage("text", shorten(content), rule) from None
    return codec
