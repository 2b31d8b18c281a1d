"""Processes each message once: a row for the message is stored in the transaction in which it is processed.

1. `once` inserts the row in a savepoint of the caller's transaction. If several transactions insert the same message,
   one of them is the first. The others wait until it has ended: after its commit they find a repeat, after a roll-back
   one of them is the first.
2. An exception in the block rolls back the row and the block's writes, even if the caller commits.
3. The caller commits. After a crash before the commit, the message counts as never received; after it, as a repeat.

Nothing here commits or rolls back the caller's transaction. `trim` has transactions of its own.
"""

import functools
import inspect
import logging
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg import Connection

from thresher.core.errors import InvalidInput, shorten
from thresher.db import TableName, statement
from thresher.db.postgres.caller_connection import NotInTransaction, in_transaction, is_tied, require_connection
from thresher.db.postgres.cursor import OwnCursor
from thresher.inbox.problem import InboxBusy, MessageRepeated

logger = logging.getLogger(__name__)

TABLE = "thresher_inbox"
# The lengths of the columns.
LONGEST_ID, _LONGEST_CONTEXT = 255, 100
_LONGEST_WAIT_SECONDS = 86_400.0
_TRIMMED_ROWS = 10_000

P = ParamSpec("P")
R = TypeVar("R")


class OnRepeat(StrEnum):
    """The treatment of a message that was processed before."""

    SKIP = "skip"
    WARN = "warn"
    RAISE = "raise"


class Inbox:
    """A table of processed messages. Cheap to create, holds no connection, safe to share between threads."""

    def __init__(
        self,
        table: str = TABLE,
        *,
        schema: str | None = None,
        on_repeat: OnRepeat = OnRepeat.SKIP,
        wait_seconds: float = 10.0,
    ) -> None:
        """`wait_seconds` is the longest wait for another transaction that processes the same message."""
        if isinstance(wait_seconds, bool) or not isinstance(wait_seconds, int | float):
            raise InvalidInput(f"wait_seconds is a number, not {type(wait_seconds).__name__}")
        if not 0 < wait_seconds <= _LONGEST_WAIT_SECONDS:
            raise InvalidInput(f"wait_seconds is {shorten(wait_seconds)}: 0 < seconds <= {_LONGEST_WAIT_SECONDS:g}")
        self.name = TableName(table=table, schema=schema)
        if on_repeat not in list(OnRepeat):
            raise InvalidInput(f"on_repeat is {shorten(on_repeat)}: one of {', '.join(OnRepeat)}")
        self._on_repeat, self._wait_seconds = OnRepeat(on_repeat), wait_seconds
        self._enter = statement("inbox_enter", self.name)

    def __repr__(self) -> str:
        return f"Inbox({self.name.quoted()})"

    @contextmanager
    def once(self, connection: Connection[Any], message_id: object, context: str = "") -> Iterator[bool]:
        """Store a message, and give whether this is the first time. If so, process it in the block.

        `context` names the processor: each context processes a message once. A message id is text, a number or a UUID.
        Raises `InboxBusy`, `NotInTransaction`, or `MessageRepeated` for a repeat with `OnRepeat.RAISE`.
        """
        entered = (admitted_context(context), admitted_id(message_id))
        require_connection(connection)
        if not is_tied(connection):
            raise NotInTransaction(
                "the connection is in autocommit and no transaction is open, so the message would be stored even if "
                "your own change fails. Use 'with connection.transaction():' around both."
            )
        if not in_transaction(connection):
            # Begin a transaction: otherwise the block below would be one itself, and commit at its end.
            OwnCursor(connection).execute(statement("clock"))
        with connection.transaction():
            first = self._entered(connection, entered)
            if not first:
                self._repeated(*entered)
            yield first

    def guarded(
        self, message_id: Callable[P, object], context: str = ""
    ) -> Callable[[Callable[Concatenate[Connection[Any], P], R]], Callable[Concatenate[Connection[Any], P], R | None]]:
        """Return a decorator for handlers whose first argument is a connection. For a repeat, it returns None.

        `message_id` returns the id of a message from the handler's other arguments.
        """

        def decorate(
            handler: Callable[Concatenate[Connection[Any], P], R],
        ) -> Callable[Concatenate[Connection[Any], P], R | None]:
            if inspect.iscoroutinefunction(handler):
                raise InvalidInput(
                    "the handler is a coroutine function, which is not supported: it would run after the transaction"
                )

            @functools.wraps(handler)
            def handle(connection: Connection[Any], /, *given: P.args, **named: P.kwargs) -> R | None:
                with self.once(connection, message_id(*given, **named), context) as first:
                    return handler(connection, *given, **named) if first else None

            return handle

        return decorate

    def trim(self, connection: Connection[Any], older_than_seconds: float, *, batch_rows: int = _TRIMMED_ROWS) -> int:
        """Remove the rows of messages that were processed longer ago, in batches, and return their number.

        Each batch is committed. A message that is delivered again after its row was removed is processed again: keep
        rows longer than any message can be repeated.
        """
        if not 0 <= older_than_seconds < math.inf or batch_rows < 1:
            raise InvalidInput("older_than_seconds must be 0 or more, and batch_rows 1 or more")
        if in_transaction(require_connection(connection)):
            raise InvalidInput("trim commits each batch: pass a connection without an open transaction")
        trimmed, removed = statement("inbox_trim", self.name), 0
        while True:
            with connection.transaction():
                count = OwnCursor(connection).execute(trimmed, [older_than_seconds, batch_rows]).rowcount
            removed += count
            if count < batch_rows:
                return removed

    def _entered(self, connection: Connection[Any], entered: tuple[str, str]) -> bool:
        context, message_id = entered
        wait = f"{max(1, math.ceil(self._wait_seconds * 1000))}ms"
        values = {"context": context, "message_id": message_id, "wait": wait}
        try:
            # In psycopg's pipeline mode the row count is not known yet, so the statement returns a value.
            found = OwnCursor(connection).execute(self._enter, values).fetchone()
        except psycopg.errors.LockNotAvailable as error:
            # The roll-back of the savepoint also resets lock_timeout.
            raise InboxBusy(
                f"another transaction has been processing message {message_id} for longer than "
                f"{self._wait_seconds:g} s: try again"
            ) from error
        return found is not None and bool(found[0])

    def _repeated(self, context: str, message_id: str) -> None:
        where = f" by {context}" if context else ""
        if self._on_repeat is OnRepeat.RAISE:
            raise MessageRepeated(f"message {message_id} was processed before{where}")
        if self._on_repeat is OnRepeat.WARN:
            logger.warning("message %s was processed before%s, and is skipped", message_id, where)


def is_storable(text: str) -> bool:
    """Whether Postgres can store a text."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def admitted_id(given: object) -> str:
    """Return a message's id as text. Raises `InvalidInput` if it is not valid."""
    if isinstance(given, bool) or not isinstance(given, str | int | uuid.UUID):
        raise InvalidInput(f"a message id is text, a number or a UUID, not {type(given).__name__}")
    return _text("message id", str(given), LONGEST_ID, least=1)


def admitted_context(given: object) -> str:
    """Return a context. Raises `InvalidInput` if it is not valid."""
    if not isinstance(given, str):
        raise InvalidInput(f"a context is text, not {type(given).__name__}")
    return _text("context", given, _LONGEST_CONTEXT, least=0)


def _text(what: str, text: str, most: int, *, least: int) -> str:
    if not least <= len(text) <= most:
        raise InvalidInput(f"a {what} has {least} to {most} characters, and {shorten(text)} has {len(text)}")
    if not is_storable(text):
        raise InvalidInput(f"a {what} with a NUL or a lone surrogate cannot be stored: {shorten(text)}")
    return text
