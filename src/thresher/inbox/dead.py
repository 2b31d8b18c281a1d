"""The table of dead messages, which their handler cannot process, with the reason. An operator retries or drops them.

A message is added in one transaction with its row in the inbox, so that it is a repeat from then on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from thresher.db import TableName, statement
from thresher.db.postgres.arrays import bytea_array, text_array
from thresher.db.postgres.cursor import ByteaArray, OwnCursor, TextArray
from thresher.kafka.record_headers import RecordHeaders


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRecord:
    """A Kafka record, as a handler gets it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message that no handler could process, with the reason. A head's record lacks the value and the headers."""

    id: int
    context: str
    message_id: str
    record: InboxRecord
    dead_time: datetime
    reason: str
    attempts: int
    # The size of the value; None if there is none.
    value_bytes: int | None = None


def set_aside(
    connection: Connection[Any],
    inbox: TableName,
    record: InboxRecord,
    *,
    context: str,
    message_id: str,
    reason: str,
    attempts: int,
) -> None:
    """Add a message to the dead table, in the caller's transaction."""
    # Postgres cannot store NUL or lone surrogates in text. A header's name or a reason must not make the insert fail.
    names = [_storable(name) for name, _ in record.headers]
    values = [value for _, value in record.headers]
    OwnCursor(connection).execute(
        statement("inbox_dead_insert", inbox),
        [
            context,
            message_id,
            record.topic,
            record.partition,
            record.offset,
            record.key,
            record.value,
            TextArray(text_array(names, "utf-8")),
            ByteaArray(bytea_array(values)),
            _storable(reason),
            attempts,
        ],
    )


def dead_messages(
    connection: Connection[Any],
    inbox: TableName,
    *,
    context: str | None = None,
    most: int = 1_000,
    after: int = 0,
    whole: bool = True,
) -> list[DeadMessage]:
    """Return up to `most` dead messages whose ids are above `after`, the oldest first.

    A producer decides how large messages are: to bound the memory, ask for few, and for the next behind the last id.
    Without `whole`, these are heads.
    """
    cursor = OwnCursor(connection)
    asked = {"context": context, "most": most, "after": after, "whole": whole}
    rows = cursor.execute(statement("inbox_dead_list", inbox), asked).fetchall()
    return [
        DeadMessage(
            id=id_,
            context=context_,
            message_id=message_id,
            record=InboxRecord(
                topic=topic,
                partition=partition,
                offset=offset,
                key=key,
                value=value,
                headers=tuple(zip(names, values, strict=True)),
            ),
            dead_time=dead_time,
            reason=reason,
            attempts=attempts,
            value_bytes=value_bytes,
        )
        for (
            id_, context_, message_id, topic, partition, offset, key, value, names, values, value_bytes, dead_time,
            reason, attempts,
        ) in rows
    ]  # fmt: skip


def process_again(
    connection: Connection[Any],
    inbox: TableName,
    message: DeadMessage,
    handler: Callable[[Connection[Any], InboxRecord], object],
) -> bool:
    """Process a dead message and remove it, in the caller's transaction; False if it was removed before.

    If the handler raises an error, the message stays. It also stays after `psycopg.Rollback`, which returns False.
    """
    handled: list[bool] = []
    with connection.transaction():
        if drop(connection, inbox, message.id):
            handler(connection, message.record)
            handled.append(True)
    return bool(handled)


def drop(connection: Connection[Any], inbox: TableName, id_: int) -> bool:
    """Remove a dead message, in the caller's transaction; False if it is gone. It still counts as processed."""
    return OwnCursor(connection).execute(statement("inbox_dead_take", inbox), [id_]).fetchone() is not None


def _storable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
