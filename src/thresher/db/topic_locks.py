"""The port through which processes share the topics of one outbox. A topic's lock is a row, or a row per part.

1. A lock is free, held, or in error. A lock that is held or in error for longer than `seconds` has expired, and any
   process may take it.
2. Each taking raises the row's **token**. Every statement of a holder names its token. Once another process has taken
   the lock, the statement changes nothing and raises `LockLost`.
3. All times are the database's. The lock of a process that stops expires by itself.
4. A topic that the cluster does not have gets no lock, but a **note** since when it is missing. Nothing was ever sent
   to it by topic locks. So its rows are set aside by the database alone: `set_aside` and `register` exclude each other.

The columns are those of Deimos' `kafka_topic_info`, and a few of our own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from thresher.core.errors import Trouble
from thresher.db.outbox_store import Fates, PendingRow, StoreSession, Wanted

# "#" separates a topic from the number of a part; a valid topic cannot contain it. A row may name a topic that is not
# valid: "!" before its name keeps its lock apart from all others.
_PART, _INVALID = "#", "!"


class LockLost(Trouble):
    """Another process has taken the topic's lock: nothing was changed, and this process leaves the topic."""


def lock_name(topic: str, part: int, parts: int) -> str:
    """Return the name of the lock of a topic, or of one of its parts. Names are unique."""
    if parts > 1:
        return f"{topic}{_PART}{part}"
    return f"{_INVALID}{topic}" if _PART in topic or topic.startswith(_INVALID) else topic


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """One lock of a topic that has pending rows. `token` is None if the topic has no lock."""

    topic: str
    part: int = 0
    parts: int = 1
    token: int | None = None
    free: bool = True
    # Whether the topic has failed since it was last sent, or single rows of it wait.
    troubled: bool = False
    # For how long the topic has been missing or forbidden, over all processes, and why; None if it is not.
    missing_seconds: float | None = None
    reason: str | None = None
    # Without a lock: the token of the note that the topic is missing.
    note: int | None = None

    @property
    def name(self) -> str:
        """The lock's name."""
        return lock_name(self.topic, self.part, self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLock:
    """A held lock, with the values that it had when it was taken."""

    topic: str
    part: int
    parts: int
    token: int
    # The partition of the progress topic, and the number in the transactional id. A lock keeps its slot for ever.
    slot: int
    retries: int = 0
    # For how long the topic has been missing or forbidden, and for how long single rows of it have waited: those with
    # ids up to `waiting_id`. All count over all processes.
    missing_seconds: float = 0.0
    waiting_seconds: float = 0.0
    waiting_id: int = 0

    @property
    def name(self) -> str:
        """The lock's name."""
        return lock_name(self.topic, self.part, self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTerms:
    """The terms under which locks are taken: the worker, its relay, the relay's term, and the time until expiry."""

    owner: str
    relay: str
    term: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    """The state of one topic. `pending` is counted up to a bound; beyond it, `exact` is False."""

    topic: str
    pending: int
    exact: bool
    oldest_seconds: float | None
    locked: int
    errored: int
    parts: int
    retries: int
    reason: str | None


class TopicLocks(Protocol):
    """The locks of one outbox, over one session. Each call is a transaction of its own."""

    def create(self) -> None:
        """Create the table of locks, or add the columns that it lacks."""
        ...

    def reset(self) -> None:
        """Free all locks and raise their tokens, which fences every holder."""
        ...

    def splits(self) -> Mapping[str, int]:
        """Return the number of parts of each topic that was ever locked."""
        ...

    def pending(self, seconds: float) -> Sequence[LockState]:
        """Return the locks of all topics that have pending rows, and whether each may be taken now."""
        ...

    def register(self, topic: str, parts: int) -> int:
        """Insert the rows of a topic's locks if there are none; return the topic's number of parts.

        If another process has recorded another number, that number is returned and nothing changes.
        """
        ...

    def note(self, missing: Mapping[str, str], terms: LockTerms) -> None:
        """Note that topics without a lock are missing, each with the reason. Their graces begin, unless they have."""
        ...

    def forget(self, topics: Collection[str]) -> None:
        """End the notes of topics that have no pending rows any more."""
        ...

    def forget_others(self, pending: Collection[str]) -> None:
        """End the notes of all topics but these, which have pending rows: a process that has ended left the others."""
        ...

    def rows_of(self, topics: Collection[str], wanted: Wanted) -> Sequence[PendingRow]:
        """Return the oldest pending rows of topics without a lock."""
        ...

    def set_aside(
        self, notes: Mapping[str, int], fates: Fates, terms: LockTerms, middle: Callable[[], None] = lambda: None
    ) -> int | None:
        """Settle dead rows of topics without a lock in one transaction, and return how many were found.

        None, and nothing is settled, if one of the notes, by topic with its token, is not as it was: the topic has a
        lock now, or another group was founded. So no row is both sent and set aside.
        """
        ...

    def acquire(self, wanted: LockState, terms: LockTerms) -> TopicLock | None:
        """Take a lock that is free or has expired; None if it is held, or the topic has another number of parts.

        None also if the control row has another term.
        """
        ...

    def require(self, lock: TopicLock) -> None:
        """Raise `LockLost` if another process has taken the lock."""
        ...

    def renew(self, lock: TopicLock) -> None:
        """Restart the time after which the lock expires. Raises `LockLost`."""
        ...

    def release(self, lock: TopicLock, *, waiting: tuple[int, int] | None = None) -> None:
        """Free the lock without an error. Raises `LockLost`.

        `waiting` has the first and the last id of rows that cannot be sent yet.
        """
        ...

    def fail(self, lock: TopicLock, reason: str, *, missing: bool = False, early_seconds: float = 0.0) -> None:
        """Free the lock with an error: nobody takes it before it has expired. Raises `LockLost`.

        `missing`: the topic does not exist or is forbidden. Its grace period counts from the first such error. The lock
        expires `early_seconds` sooner than others.
        """
        ...

    def take(self, lock: TopicLock, wanted: Wanted, session_id: UUID) -> Sequence[PendingRow]:
        """Return the topic's oldest pending rows by id. Raises `LockLost`.

        In Deimos' table the rows get the session id, which shows people which rows are being sent. Safety does not
        depend on it.
        """
        ...

    def settle(self, lock: TopicLock, fates: Fates, middle: Callable[[], None] = lambda: None) -> int:
        """Settle the fates of a committed progress record and renew the lock, both or neither; return the rows found.

        Raises `LockLost` and settles nothing if the lock is lost: the next holder's recovery settles the rows.
        """
        ...

    def split(self, topic: str, parts: int, held: Sequence[TopicLock]) -> None:
        """Record another number of parts for a topic, all of whose locks are held, and free them. Raises `LockLost`."""
        ...

    def figures(self, topics: int) -> Sequence[TopicFigures]:
        """Return the state of topics with pending rows, held locks or errors: at most so many, by longest wait."""
        ...


class LockingSession(StoreSession, Protocol):
    """A session in a database that can hold topic locks."""

    def topic_locks(self, *, table: str | None = None) -> TopicLocks:
        """Return the locks of the outbox's topics. With `table`, the identity of a table, only its rows are taken."""
        ...

    def other_sessions(self, *, starting: str, but: str, within_seconds: float | None = None) -> int:
        """Return the number of other sessions whose application name starts with `starting`, but not with `but`.

        Only sessions of roles that may lead count; with `within_seconds`, only those that were active within this time.
        """
        ...
