"""A session that holds what another one waits for, and how a person is told of it."""

from collections.abc import Sequence
from dataclasses import dataclass

# Of a query and of holders, as much as a line of a log bears.
_MOST_LETTERS = 200
_MOST_HOLDERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session of the database's; without a pid, a prepared transaction, which belongs to no session."""

    pid: int | None
    user: str | None = None
    application: str | None = None
    # Such as `active` or `idle in transaction`, and for how long its transaction has been open.
    state: str | None = None
    seconds: float | None = None
    # The statement that it runs or ran last. Another role's is hidden from a role without `pg_read_all_stats`.
    query: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return "a prepared transaction (see pg_prepared_xacts)"
        about = [f"user {self.user}", f"application {self.application or 'unnamed'!r}", self.state or "state unknown"]
        if self.seconds is not None:
            about.append(f"its transaction open for {self.seconds:.0f} s")
        query = " ".join((self.query or "").split())
        shown = query if len(query) <= _MOST_LETTERS else f"{query[:_MOST_LETTERS]}…"
        return f"backend {self.pid} ({', '.join(about)}), query: {shown or 'unknown'}"


def held_by(holders: Sequence[LockHolder]) -> str | None:
    """Say who holds the lock that a session waits for; None where it waits for none."""
    if not holders:
        return None
    more = len(holders) - _MOST_HOLDERS
    rest = f"; and {more} others" if more > 0 else ""
    return f"it waits for a lock held by {'; '.join(map(str, holders[:_MOST_HOLDERS]))}{rest}"
