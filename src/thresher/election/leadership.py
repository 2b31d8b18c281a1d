"""The port of an election: who competes, and what a competitor learns.

1. `start` begins to compete, once. Nothing is known before.
2. `wait` gives every change, in order, to one caller. A leadership begins with `Acquired`, has any number of
   `Refreshed`, and ends with `Revoked` or `Fenced`; then the next one may begin. No leader id ever comes twice.
3. `leader_id` is that of the leadership that is held now, and None as soon as its deadline has passed, whether anybody
   has waited or not. It may be asked for from any thread.
4. An error that somebody has to act on is raised by `wait`, once all changes before it were given, and ever after.
   What time mends is waited for, and told once in the log; `trouble` has it meanwhile.

An election is for liveness. While clocks run evenly there is one leader at a time; but a process may be stopped between
asking for `leader_id` and acting on it. So safety never rests on it: the relay's term and the broker's producer epoch
keep a leader that does not know of its end from doing harm.
"""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """This one leads from now on, under a fresh id."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """It still leads, under another id, because somebody asked for one."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """It leads no more, in good order: nobody else has led before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """It leads no more, and another one may already: what it has in its hands must be let go of at once."""

    reason: str


Change = Acquired | Refreshed | Revoked | Fenced


class Leadership(Protocol):
    """One competitor."""

    @property
    def leader_id(self) -> UUID | None:
        """The id of the leadership that is held now; None for a standby. Safe from any thread."""

    @property
    def trouble(self) -> str | None:
        """What the election waits for: servers, or an access that is refused. None while it goes on. For any thread.

        While it waits, leadership could not be acquired.
        """

    def start(self) -> None:
        """Begin to compete, and return at once. Raises `ElectionMisused` the second time."""

    def wait(self, seconds: float) -> Change | None:
        """Return the next change; None if there is none within so long, and at once after `stop`."""

    def refresh(self) -> UUID | None:
        """Take another id within the same leadership, and return it; None for a standby. `wait` gives `Refreshed`."""

    def resign(self) -> None:
        """Give up a leadership that is held, so that another one can have it, and go on competing."""

    def stop(self) -> None:
        """Leave at once, so that a successor need not wait. Harmless when repeated, and before `start`."""
