"""Each message once: the row that says so is in the transaction in which the message is processed.

1. `once` enters the message in a savepoint of the caller's transaction. Of many that enter the same one, one is the
   first; the others wait until its transaction has ended, and find a repeat, or are the first where it was rolled back.
2. An exception in the block takes back the row and what the block has written, whatever the caller commits.
3. The caller commits. A crash before that is as if the message had never come; after it the message is a repeat.

Nothing here commits or rolls back a transaction of the caller's, except `trim`, which has its own.
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
# As the columns have them.
LONGEST_ID, _LONGEST_CONTEXT = 255, 100
_LONGEST_WAIT_SECONDS = 86_400.0
_TRIMMED_ROWS = 10_000

P = ParamSpec("P")
R = TypeVar("R")


class OnRepeat(StrEnum):
    """What becomes of a message that was processed before."""

    SKIP = "skip"
    WARN = "warn"
    RAISE = "raise"


class Inbox:
    """A table of the messages that were processed. Cheap to make, holds no connection, safe to share by threads."""

    def __init__(
        self,
        table: str = TABLE,
        *,
        schema: str | None = None,
        on_repeat: OnRepeat = OnRepeat.SKIP,
        wait_seconds: float = 10.0,
    ) -> None:
        """`wait_seconds` is how long to wait for another transaction that processes the same message."""
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
        """Enter a message, and give whether this is the first time: then process it in the block.

        `context` is who processes it: each processes it once. A message id is text, a number or a UUID. Raises
        `InboxBusy`, `NotInTransaction`, or `MessageRepeated` where a repeat is to raise.
        """
        entered = (admitted_context(context), admitted_id(message_id))
        require_connection(connection)
        if not is_tied(connection):
            raise NotInTransaction(
                "the connection is in autocommit and no transaction is open, so the message would be entered whatever "
                "becomes of your own change. Use 'with connection.transaction():' around both."
            )
        if not in_transaction(connection):
            # Or the savepoint would be the whole transaction, and committed at its end.
            OwnCursor(connection).execute(statement("clock"))
        with connection.transaction():
            first = self._entered(connection, entered)
            if not first:
                self._repeated(*entered)
            yield first

    def guarded(
        self, message_id: Callable[P, object], context: str = ""
    ) -> Callable[[Callable[Concatenate[Connection[Any], P], R]], Callable[Concatenate[Connection[Any], P], R | None]]:
        """Return a decorator for handlers that take a connection first: a repeat is not handled, and returns None.

        `message_id` returns the id of a message, from the handler's other arguments.
        """

        def decorate(
            handler: Callable[Concatenate[Connection[Any], P], R],
        ) -> Callable[Concatenate[Connection[Any], P], R | None]:
            if inspect.iscoroutinefunction(handler):
                raise InvalidInput("the handler is a coroutine function: its work would be done after the block")

            @functools.wraps(handler)
            def handle(connection: Connection[Any], /, *given: P.args, **named: P.kwargs) -> R | None:
                with self.once(connection, message_id(*given, **named), context) as first:
                    return handler(connection, *given, **named) if first else None

            return handle

        return decorate

    def trim(self, connection: Connection[Any], older_than_seconds: float, *, batch_rows: int = _TRIMMED_ROWS) -> int:
        """Remove the rows of messages that were processed longer ago, in batches, and return how many they were.

        Each batch is committed. A message that comes again after its row is gone is processed again: keep rows for
        longer than any message can be repeated.
        """
        if not 0 <= older_than_seconds < math.inf or batch_rows < 1:
            raise InvalidInput("seconds of 0 or more, and batches of a row or more, are needed")
        if in_transaction(require_connection(connection)):
            raise InvalidInput("trim commits each batch: give it a connection without an open transaction")
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
            # Not the count of rows, which is not known yet in a pipeline.
            found = OwnCursor(connection).execute(self._enter, values).fetchone()
        except psycopg.errors.LockNotAvailable as error:
            # The savepoint takes the limit back, too.
            raise InboxBusy(
                f"message {message_id} is being processed by another transaction for longer than "
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
    """Whether the database can hold a text."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def admitted_id(given: object) -> str:
    """Return a message's id as text. Raises `InvalidInput` where it can be none."""
    if isinstance(given, bool) or not isinstance(given, str | int | uuid.UUID):
        raise InvalidInput(f"a message id is text, a number or a UUID, not {type(given).__name__}")
    return _text("message id", str(given), LONGEST_ID, least=1)


def admitted_context(given: object) -> str:
    """Return a context. Raises `InvalidInput` where it can be none."""
    if not isinstance(given, str):
        raise InvalidInput(f"a context is text, not {type(given).__name__}")
    return _text("context", given, _LONGEST_CONTEXT, least=0)


def _text(what: str, text: str, most: int, *, least: int) -> str:
    if not least <= len(text) <= most:
        raise InvalidInput(f"a {what} has {least} to {most} characters, and {shorten(text)} has {len(text)}")
    if not is_storable(text):
        raise InvalidInput(f"a {what} with a NUL or a lone surrogate cannot be stored: {shorten(text)}")
    return text
