"""A session that holds a lock for which another session waits, and the text that says so in logs and errors."""

from collections.abc import Sequence
from dataclasses import dataclass

# At most this much of a query, and this many holders, fit a line of a log.
_MOST_CHARACTERS = 200
_MOST_HOLDERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds a lock. Without a pid it is a prepared transaction, which belongs to no session."""

    pid: int | None
    user: str | None = None
    application: str | None = None
    # For example `active` or `idle in transaction`; and for how long the transaction has been open.
    state: str | None = None
    seconds: float | None = None
    # The current or last statement. Postgres hides other roles' statements from roles without `pg_read_all_stats`.
    query: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return "a prepared transaction (see pg_prepared_xacts)"
        about = [f"user {self.user}", f"application {self.application or 'unnamed'!r}", self.state or "state unknown"]
        if self.seconds is not None:
            about.append(f"its transaction open for {self.seconds:.0f} s")
        query = " ".join((self.query or "").split())
        shown = query if len(query) <= _MOST_CHARACTERS else f"{query[:_MOST_CHARACTERS]}…"
        return f"backend {self.pid} ({', '.join(about)}), query: {shown or 'unknown'}"


def held_by(holders: Sequence[LockHolder]) -> str | None:
    """Return a text that names the holders of the lock that a session waits for; None if there are none."""
    if not holders:
        return None
    more = len(holders) - _MOST_HOLDERS
    rest = f"; and {more} others" if more > 0 else ""
    return f"it waits for a lock held by {'; '.join(map(str, holders[:_MOST_HOLDERS]))}{rest}"
