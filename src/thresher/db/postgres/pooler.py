"""Finds out whether a pooler in transaction mode stands between us and Postgres.

It gives the server's sessions to whoever has a transaction, and takes them back after it. The prepared statements of a
relay, its settings and the name by which a successor ends it would be somebody else's. Two sessions show it:

1. Both are served by one process.
2. Or, while the other one has a transaction open and so keeps its process, one is served by this process and by that.
"""

from collections.abc import Sequence
from typing import Any

import psycopg

from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import explained
from thresher.db.problem import DatabaseRefused
from thresher.db.statements import statement

# Enough for a pooler that hands its sessions out in turns.
_LOOKS = 4


def require_own_processes(one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
    """Raise `DatabaseRefused` unless each of two sessions in autocommit has a process of its own, and keeps it."""
    seen = [_process(one)]
    others = [_process(other)]
    if not are_shared(seen, others):
        with explained(), other.transaction():
            others.append(_process(other))
            seen += [_process(one) for _ in range(_LOOKS)]
    if are_shared(seen, others):
        raise DatabaseRefused(
            "a pooler in transaction mode stands between the relay and Postgres (PgBouncer with pool_mode=transaction, "
            "or its like): a relay needs sessions of its own. Connect it to Postgres itself, or to a pool with "
            "pool_mode=session"
        )


def are_shared(seen: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two sessions, served by these processes in turn, do not have one each for themselves."""
    return len(set(seen)) > 1 or len(set(others)) > 1 or not set(seen).isdisjoint(others)


def _process(connection: psycopg.Connection[Any]) -> str:
    with explained():
        row = OwnCursor(connection).execute(statement("session_process"), prepare=False).fetchone()
    return "" if row is None else str(row[0])
