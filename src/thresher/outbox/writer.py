"""The outbox writer: stores messages in the caller's own transaction, and does nothing else.

What is promised: a message is stored if and only if the caller's transaction commits. The writer never begins, commits
or rolls back anything, talks to no broker, and checks messages before it touches the connection, so a refusal leaves
the transaction usable. A crash at any point is the transaction's crash: stored with it, or gone with it.
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
from thresher.outbox.unpolled import LogWriter, PassingRows, Via, require_sensible

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

    For a tail: `via="log"` writes messages into the database's log and into no table; `keep=False` deletes each row in
    the transaction that inserts it. Both give no receipts, and raise `NoSlot` unless a slot keeps the log: `slot`, or
    thresher_<table>.
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
        self._passing = None if keep else PassingRows(self.name)
        # Whether rows stay in the table until they are sent.
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
        """Store one message in the caller's transaction, and return its receipt. The order of calls is that per key.

        In a pipeline the database has not answered yet: there is no receipt, and None is returned. So it is where no
        row stays in the table.
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
        """Store the messages, all or none of them, in one stream; return how many, or their receipts in this order.

        All are checked before the first is sent. The order given is the order per key. Receipts cost a statement for
        each message instead of a stream for all, and cannot be had in a pipeline.
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
            # COPY does not exist inside the caller's pipeline; its inserts travel together anyway.
            cursor.executemany(self._insert, [_parameters(row, codec) for row in rows])
        self._require_stored(connection, cursor, len(rows))
        return len(rows)

    def _write_for_tail(self, connection: Connection[Any], rows: Sequence[Row]) -> None:
        if self._slot is not None:
            self._slot.require(connection)
        if self._log is not None:
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

    def _require_room(self, connection: Connection[Any]) -> None:
        if self._outstanding is not None:
            self._outstanding.require_room(connection)

    def _require_stored(self, connection: Connection[Any], cursor: OwnCursor, count: int) -> None:
        # In a pipeline the answer comes later, to the caller.
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
def _remedied() -> Iterator[None]:
    """Note at the database's own error of a missing right, which the caller gets, where the grants are."""
    try:
        yield
    except errors.InsufficientPrivilege as error:
        error.add_note(f"thresher: {RIGHTS}")
        raise


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
