"""The port through which processes share the topics of one outbox: a row per topic, or per part of one, is its lock.

1. A lock is free, held, or errored. One that is held or errored for longer than `seconds` may be taken by anybody.
2. Each taking raises the row's **token**. Every statement of a holder names its token, and changes nothing once another
   process has taken the lock: it raises `LockLost`.
3. All times are the database's. A process that stops leaves a lock that runs out by itself.

The columns are those of Deimos' `kafka_topic_info`, and a few of our own beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from thresher.core.errors import Trouble
from thresher.db.outbox_store import Fates, PendingRow, StoreSession, Wanted

# Between a topic's name, which cannot contain it, and the number of a part. Rows may name what cannot be a topic: the
# locks of such have a mark before their names.
_PART, _ODD = "#", "!"


class LockLost(Trouble):
    """Another process has taken the topic's lock: nothing was changed, and this one leaves the topic."""


def lock_name(topic: str, part: int, parts: int) -> str:
    """Return the name of a lock: the topic's, or that of a part of it. No two locks have the same."""
    if parts > 1:
        return f"{topic}{_PART}{part}"
    return f"{_ODD}{topic}" if _PART in topic or topic.startswith(_ODD) else topic


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """One lock of a topic that has pending rows. `token` is None where the topic has never been locked."""

    topic: str
    part: int = 0
    parts: int = 1
    token: int | None = None
    free: bool = True
    errored: bool = False

    @property
    def name(self) -> str:
        """The lock's name."""
        return lock_name(self.topic, self.part, self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLock:
    """A lock that is held, as it was taken."""

    topic: str
    part: int
    parts: int
    token: int
    # The partition of the progress topic, and the number in the transactional id. A lock keeps its slot for ever.
    slot: int
    retries: int = 0
    # For how long the topic has been missing or forbidden, and single rows of it have waited, over all processes.
    missing_seconds: float = 0.0
    waiting_seconds: float = 0.0

    @property
    def name(self) -> str:
        """The lock's name."""
        return lock_name(self.topic, self.part, self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTerms:
    """Under which terms locks are taken: by which worker, of which relay under which term, and for how long."""

    owner: str
    relay: str
    term: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    """How one topic stands. `pending` counts up to a bound, beyond which `exact` is False."""

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
        """Create the table of locks if there is none, or the columns that it lacks."""
        ...

    def reset(self) -> None:
        """Free all locks, and raise their tokens: no holder changes anything any more."""
        ...

    def splits(self) -> Mapping[str, int]:
        """Return into how many parts each topic is split that has ever been locked."""
        ...

    def pending(self, seconds: float) -> Sequence[LockState]:
        """Return the locks of all topics that have pending rows, and whether each may be taken now."""
        ...

    def register(self, topic: str, parts: int) -> int:
        """Make the rows of a topic's locks where there are none; return into how many parts it is split.

        Where another process has recorded another number, that is returned and nothing changes.
        """
        ...

    def acquire(self, wanted: LockState, terms: LockTerms) -> TopicLock | None:
        """Take a lock that is free, or has run out; None where somebody holds it, or its topic is split otherwise.

        Nothing is taken under a term that is not the control row's.
        """
        ...

    def require(self, lock: TopicLock) -> None:
        """Raise `LockLost` if the lock is not ours any more."""
        ...

    def renew(self, lock: TopicLock) -> None:
        """Let the lock last anew. Raises `LockLost`."""
        ...

    def release(self, lock: TopicLock, *, waiting: bool = False) -> None:
        """Free the lock, with no error. `waiting`: single rows of the topic cannot be sent yet. Raises `LockLost`."""
        ...

    def fail(self, lock: TopicLock, reason: str, *, missing: bool = False) -> None:
        """Free the lock with an error: nobody takes it before it has run out. Raises `LockLost`.

        `missing`: the topic is not there, or forbidden, and its grace counts from the first such error on.
        """
        ...

    def take(self, lock: TopicLock, wanted: Wanted, session_id: UUID) -> Sequence[PendingRow]:
        """Return the topic's oldest pending rows by id. Raises `LockLost`.

        In Deimos' table they get the session id: it shows which rows are on their way. Nothing rests on it.
        """
        ...

    def settle(self, lock: TopicLock, fates: Fates, middle: Callable[[], None] = lambda: None) -> int:
        """Settle a committed record's fates and renew the lock, both or neither; return how many rows were found.

        Raises `LockLost`, and settles nothing: the next holder's recovery does.
        """
        ...

    def split(self, topic: str, parts: int, held: Sequence[TopicLock]) -> None:
        """Record another split of a topic, all of whose locks are held, and free them. Raises `LockLost`."""
        ...

    def figures(self, topics: int) -> Sequence[TopicFigures]:
        """Return how topics stand that have pending rows or errors, at most so many: those that wait longest first."""
        ...


class LockingSession(StoreSession, Protocol):
    """A session in a database whose outbox' topics can be locked."""

    def topic_locks(self, *, table: str | None = None) -> TopicLocks:
        """Return the locks of the outbox' topics; with a table's identity, rows of another are not taken."""
        ...

    def other_sessions(self, *, starting: str, but: str, within_seconds: float | None = None) -> int:
        """Return how many other sessions there are whose application name starts so, except with `but`.

        With a time, only those that have done anything in it.
        """
        ...
