"""The waits of a record that cannot be processed for a cause that is not its own: the database, or another transaction.

Each wait is logged, and told to the application. The holder of the lock is asked for over a connection of its own,
because a session that waits cannot ask.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection

from thresher.core.errors import ThresherError
from thresher.db.lock_holder import held_by
from thresher.db.postgres.sessions import keep_to_own_path, lock_holders_of
from thresher.inbox.dead import InboxRecord
from thresher.inbox.problem import InboxBusy

logger = logging.getLogger(__name__)

# How long a session waits before the session that blocks it is asked for, and the time-out of that question.
_ASK_AFTER_SECONDS, _ASK_SECONDS = 0.1, 5
# The class of errors of transactions that were rolled back because of others.
_ROLLED_BACK = "40"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A record cannot be processed at the moment, for a cause that is not its own: why, and for how long already."""

    record: InboxRecord
    message_id: str
    why: str
    seconds: float


class Standing:
    """The waits of one record for causes that are not its own: each is logged, and told to `on_wait`."""

    def __init__(
        self, record: InboxRecord, message_id: str, *, busy_seconds: float, on_wait: Callable[[Waiting], object]
    ) -> None:
        self._record, self._message_id = record, message_id
        self._busy_seconds, self._on_wait = busy_seconds, on_wait
        self._began = self._tried = time.monotonic()
        # Since when another transaction is waited for; and which session has it, as far as known.
        self._busy_since: float | None = None
        self._holder: str | None = None

    def because_of_the_database(self, error: Exception) -> bool:
        """Return whether the database is the cause of an error, and not the handler; if so, tell of the wait."""
        # This try was not behind another transaction.
        self._busy_since = None
        cause = error.__cause__ or error
        if (code := _rolled_back(cause)) is not None:
            logger.warning("message %s is tried again after error %s: %s", self._message_id, code, told(cause))
        elif isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            logger.warning("the database is not reachable, waiting for it: %s", error)
        else:
            return False
        self._tell(told(cause), self._began)
        return True

    def behind_another(self, error: InboxBusy) -> None:
        """Tell of a wait for another transaction that processes the message. Raises `InboxBusy` once it took too long.

        The first wait is not known to be one before it has ended. Later ones name the session that is waited for.
        """
        if self._busy_since is None:
            self._busy_since = self._tried
        why = f"{error}; {self._holder}" if self._holder else str(error)
        record = self._record
        logger.warning("%s/%d stands still at offset %d: %s", record.topic, record.partition, record.offset, why)
        if self._tell(why, self._busy_since) >= self._busy_seconds:
            raise InboxBusy(why) from error

    @contextmanager
    def watching(self, connection: Connection[Any]) -> Iterator[None]:
        """Ask which session blocks this connection while the block runs, over another connection."""
        self._tried = time.monotonic()
        if self._busy_since is None:
            yield
            return
        ended = threading.Event()
        asking = threading.Thread(target=self._ask, args=(connection, ended), daemon=True)
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join(_ASK_SECONDS)

    def _ask(self, connection: Connection[Any], ended: threading.Event) -> None:
        info = connection.info
        pid, dsn, password = info.backend_pid, info.dsn, info.password
        if ended.wait(_ASK_AFTER_SECONDS):
            return
        try:
            with psycopg.connect(dsn, password=password or None, connect_timeout=_ASK_SECONDS) as own:
                # A pooler may be in between: only this transaction's path is another one.
                keep_to_own_path(own)
                self._holder = held_by(lock_holders_of(own, pid))
        except (psycopg.Error, ThresherError) as error:
            logger.debug("the session that blocks %d was not found: %s", pid, error)

    def _tell(self, why: str, since: float) -> float:
        seconds = time.monotonic() - since
        self._on_wait(Waiting(record=self._record, message_id=self._message_id, why=why, seconds=seconds))
        return seconds


def _rolled_back(error: BaseException | None) -> str | None:
    """Return the code of class 40 among an error and its causes; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # Libraries over the driver wrap its error: as the cause, or as `orig`.
        for each in (error, getattr(error, "orig", None)):
            code = getattr(each, "sqlstate", None)
            if isinstance(code, str) and code.startswith(_ROLLED_BACK):
                return code
        error = error.__cause__
    return None


def told(error: BaseException) -> str:
    """Return an error with its class, whatever its own text does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the __str__ of user code may raise anything
        return type(error).__name__
