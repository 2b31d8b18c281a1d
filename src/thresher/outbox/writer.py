"""The outbox writer: stores messages in the caller's own transaction, and does nothing else.

A message is stored if and only if the caller's transaction commits. The writer never begins, commits or rolls back a
transaction, and talks to no broker. It checks messages before it uses the connection, so a refusal leaves the
transaction usable. After a crash at any point, the message is stored if the transaction was committed, and gone if not.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from functools import lru_cache
from typing import Any, Literal, LiteralString, overload

from psycopg import Connection, errors
from psycopg.pq import Format, PipelineStatus

from thresher.core.errors import InvalidInput, ThresherError, shorten
from thresher.db import TableName, statement
from thresher.db.log_names import slot_name
from thresher.db.postgres.arrays import bytea_array, text_array
from thresher.db.postgres.caller_connection import NotInTransaction, UnsupportedConnection, is_tied, require_connection
from thresher.db.postgres.cursor import ByteaArray, OwnCursor, TextArray
from thresher.db.postgres.refusal import RIGHTS
from thresher.outbox.admission import Admission, InvalidMessage, Limits, Row
from thresher.outbox.log_slot import SlotWatch
from thresher.outbox.message import Message, with_event_id
from thresher.outbox.outstanding import Outstanding
from thresher.outbox.receipt import NoReceiptsInPipeline, Receipt
from thresher.outbox.shape import Shape
from thresher.outbox.unpolled import InsertDeleteWriter, LogWriter, Via, require_sensible

# The header arrays are encoded by our own code, so the driver gets them as bytes.
_COPY_TYPES: dict[Shape, tuple[str, ...]] = {
    Shape.THRESHER: ("varchar", "bytea", "bytea", "bytea", "bytea", "int4", "timestamptz"),
    Shape.GOHARVEST: ("timestamptz", "varchar", "varchar", "varchar", "bytea", "bytea"),
    Shape.DEIMOS: ("varchar", "bytea", "bytea", "varchar", "timestamp", "timestamp"),
}

__all__ = ["MessageNotStored", "NotInTransaction", "Outbox", "UnsupportedConnection"]


class MessageNotStored(ThresherError):  # noqa: N818
    """The database stored fewer rows than were sent: the transaction must not be committed."""


class Outbox:
    """Writes messages to an outbox table. Cheap to create, holds no connection, and threads may share it.

    `require_transaction=False` allows autocommit, where a message is not tied to any other change. `event_ids` adds a
    header `event-id` to each message that has none; an inbox recognizes duplicates by it.

    For a tail: `via="log"` writes messages to the database's WAL and to no table; `keep=False` deletes each row in the
    transaction that inserts it. Both return no receipts, and raise `NoSlot` unless a slot keeps the WAL: `slot`, by
    default thresher_<table>.
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
        via: Via = "table",
        keep: bool = True,
        slot: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = TableName(table=table, schema=schema)
        self.shape = Shape(shape)
        limits = limits or Limits()
        require_sensible(via, self.shape, limits, keep=keep, slot=slot, tied=require_transaction)
        self._log = LogWriter(self.name) if via == "log" else None
        self._passing = None if keep else InsertDeleteWriter(self.name)
        # Whether rows stay in the table until a relay has sent them.
        self.keeps_rows = via == "table" and keep
        self._slot = None if self.keeps_rows else SlotWatch(slot or slot_name(self.name), clock)
        self._admission = Admission(self.shape, limits)
        most = limits.outstanding
        self._outstanding = None if most is None else Outstanding(self.name, self.shape, most, clock)
        self._require_transaction = require_transaction
        self._identified: Callable[[Message], Message] = with_event_id if event_ids else lambda message: message
        self._insert: LiteralString = statement(f"{self.shape.prefix}_insert", self.name)
        self._copy: LiteralString = statement(f"{self.shape.prefix}_copy", self.name)

    def __repr__(self) -> str:
        return f"Outbox({self.name.quoted()}, shape={self.shape.value})"

    def stash(self, connection: Connection[Any], message: Message) -> Receipt | None:
        """Store one message in the caller's transaction, and return its receipt.

        The order of calls is the order per key. Returns None in a pipeline, where the database has not answered yet,
        and if no row stays in the table.
        """
        row = self._admission.row(self._identified(message))
        self._admit_connection(connection)
        if not self.keeps_rows:
            self._write_for_tail(connection, [row])
            return None
        codec = _admit_encoding(connection, [row])
        self._require_room(connection)
        cursor = OwnCursor(connection)
        try:
            with _remedied():
                cursor.execute(self._insert, _parameters(row, codec), binary=True)
        except errors.FeatureNotSupported as error:
            raise self._not_stored(1, 0) from error
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            return None
        found = cursor.fetchone()
        if found is None:
            raise self._not_stored(1, 0)
        return self._receipt(found)

    @overload
    def stash_many(
        self, connection: Connection[Any], messages: Iterable[Message], *, receipts: Literal[False] = False
    ) -> int: ...

    @overload
    def stash_many(
        self, connection: Connection[Any], messages: Iterable[Message], *, receipts: Literal[True]
    ) -> list[Receipt]: ...

    def stash_many(
        self, connection: Connection[Any], messages: Iterable[Message], *, receipts: bool = False
    ) -> int | list[Receipt]:
        """Store messages, all or none of them, by one COPY; return how many, or their receipts in the same order.

        All are checked before the first is sent. The order given is the order per key. `receipts=True` executes one
        INSERT per message instead of one COPY, and is refused in a pipeline.
        """
        admit, identified = self._admission.row, self._identified
        rows = [admit(identified(message)) for message in messages]
        self._admit_connection(connection)
        if receipts:
            return self._stash_each(connection, rows)
        if not rows:
            return 0
        if not self.keeps_rows:
            self._write_for_tail(connection, rows)
            return len(rows)
        codec = _admit_encoding(connection, rows)
        self._require_room(connection)
        cursor = OwnCursor(connection)
        if connection.pgconn.pipeline_status == PipelineStatus.OFF:
            with _remedied():
                self._stream(cursor, rows, codec)
        else:
            # COPY is not possible in the caller's pipeline, which sends the INSERTs together anyway.
            cursor.executemany(self._insert, [_parameters(row, codec) for row in rows])
        self._require_stored(connection, cursor, len(rows))
        return len(rows)

    def _write_for_tail(self, connection: Connection[Any], rows: Sequence[Row]) -> None:
        if self._slot is not None:
            self._slot.require(connection)
        if self._log is not None:
            with _remedied("'thresher tail slot create --via log' creates the function, and tells the grants"):
                self._log.write(connection, rows)
        elif self._passing is not None:
            codec = _admit_encoding(connection, rows)
            stored = self._passing.write(connection, self._insert, [_parameters(row, codec) for row in rows])
            if stored != len(rows):
                raise self._not_stored(len(rows), stored)

    def _stash_each(self, connection: Connection[Any], rows: Sequence[Row]) -> list[Receipt]:
        if not self.keeps_rows:
            raise InvalidInput("no row stays in the table, so there is none that a receipt could stand for")
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise NoReceiptsInPipeline(
                "in a pipeline the database answers later, and receipts are its answers: leave the pipeline first, or "
                "stash without receipts and let the sweeper send the messages"
            )
        if not rows:
            return []
        codec = _admit_encoding(connection, rows)
        self._require_room(connection)
        cursor = OwnCursor(connection)
        cursor.format = Format.BINARY
        try:
            with _remedied():
                cursor.executemany(self._insert, [_parameters(row, codec) for row in rows], returning=True)
        except errors.FeatureNotSupported as error:
            raise self._not_stored(len(rows), 0) from error
        found = cursor.fetchall()
        while cursor.nextset():
            found += cursor.fetchall()
        if len(found) != len(rows):
            raise self._not_stored(len(rows), len(found))
        return [self._receipt(each) for each in found]

    def _stream(self, cursor: OwnCursor, rows: Sequence[Row], codec: str) -> None:
        if self.shape is not Shape.THRESHER:
            (now,) = cursor.execute(statement("clock")).fetchone() or (None,)
        with cursor.copy(self._copy) as copy:
            copy.set_types(_COPY_TYPES[self.shape])
            write_row = copy.write_row
            # Header names repeat from message to message, so their arrays are cached.
            named = lru_cache(maxsize=1024)(lambda names: text_array(names, codec))
            if self.shape is Shape.THRESHER:
                for topic, key, value, names, values, partition, timestamp in rows:
                    write_row((topic, key, value, named(names), bytea_array(values), partition, timestamp))
            elif self.shape is Shape.DEIMOS:
                # In UTC without a time zone, as Rails writes it.
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

    def _require_room(self, connection: Connection[Any]) -> None:
        if self._outstanding is not None:
            self._outstanding.require_room(connection)

    def _require_stored(self, connection: Connection[Any], cursor: OwnCursor, count: int) -> None:
        # In a pipeline the caller gets the answer, later.
        if connection.pgconn.pipeline_status == PipelineStatus.OFF and cursor.rowcount != count:
            raise self._not_stored(count, cursor.rowcount)

    def _not_stored(self, count: int, stored: int) -> MessageNotStored:
        return MessageNotStored(
            f"{count} message(s) were sent and {stored} stored in {self.name}: a rule or trigger on the table drops "
            "rows. Roll back, and see 'thresher schema check'."
        )

    def _receipt(self, found: tuple[Any, ...]) -> Receipt:
        id_, create_time = found
        return Receipt(table=self.name, id=id_, create_time=create_time.astimezone(UTC))


@contextmanager
def _remedied(remedy: str = RIGHTS) -> Iterator[None]:
    """Add a note to the database's error for a missing privilege or function: it says where the grants are printed."""
    try:
        yield
    except (errors.InsufficientPrivilege, errors.UndefinedFunction) as error:
        error.add_note(f"thresher: {remedy}")
        raise


def _parameters(row: Row, codec: str) -> list[Any]:
    """Return the parameters of an INSERT, with encoded arrays, so that the caller's adapters play no part."""
    topic, key, value, names, values, *rest = row
    if len(rest) == 1:
        # A row in Deimos' shape: it has a partition key, and no header columns.
        return [topic, key, value, *rest]
    # Only goharvest's rows have a text key, and then header values are text too.
    contents = TextArray(text_array(values, codec)) if isinstance(key, str) else ByteaArray(bytea_array(values))
    return [topic, key, value, TextArray(text_array(names, codec)), contents, *rest]


def _admit_encoding(connection: Connection[Any], rows: Sequence[Row]) -> str:
    """Return the codec for text on this connection; refuse text that it or the database cannot hold."""
    status = connection.info.parameter_status
    server, client = status("server_encoding"), status("client_encoding")
    if server == client == "UTF8":
        return "utf-8"
    # If the server has to convert between two other encodings, we cannot know which characters it can: ASCII is safe.
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
