"""The port of an election: how a process competes, and what it learns.

1. `start` begins to compete. It is called once.
2. `wait` returns every change, in order, to one caller. A leadership begins with `Acquired`, has any number of
   `Refreshed`, and ends with `Revoked` or `Fenced`; then the next leadership may begin. Leader ids never repeat.
3. `leader_id` is the id of the current leadership. It is None as soon as the deadline has passed, even if nobody has
   called `wait`. Any thread may read it.
4. `wait` raises an error that somebody has to act on, after all earlier changes were returned, and at every later call.
   Temporary trouble is waited out and logged once; `trouble` describes it meanwhile.

An election is for liveness. While clocks run evenly there is one leader at a time. But a process may be stopped between
reading `leader_id` and acting on it. So safety never depends on the election: the relay's term and the broker's
producer epoch stop a former leader that does not know that its leadership has ended.
"""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """This process leads from now on, under a new id."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """This process still leads, under another id, because `refresh` was called."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """This process no longer leads. It was told in time: no other process has led meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """This process no longer leads, and another one may lead already: its work must be abandoned at once."""

    reason: str


Change = Acquired | Refreshed | Revoked | Fenced


class Leadership(Protocol):
    """One process that competes for leadership."""

    @property
    def leader_id(self) -> UUID | None:
        """The id of the current leadership; None for a standby. Safe from any thread."""

    @property
    def trouble(self) -> str | None:
        """The reason why the election waits: a server, or refused credentials. None if it does not wait.

        While it waits, this process cannot become the leader. Safe from any thread.
        """

    def start(self) -> None:
        """Begin to compete, and return at once. Raises `ElectionMisused` at the second call."""

    def wait(self, seconds: float) -> Change | None:
        """Return the next change; None if there is none within this time, and immediately after `stop`."""

    def refresh(self) -> UUID | None:
        """Draw another id for the same leadership and return it; None for a standby. `wait` returns `Refreshed`."""

    def resign(self) -> None:
        """Give up the leadership, so that another process can get it, and go on competing."""

    def stop(self) -> None:
        """Leave at once, so that a successor need not wait. Idempotent; may be called before `start`."""
