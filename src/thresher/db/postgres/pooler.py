"""Detects a pooler in transaction mode between Thresher and Postgres.

Such a pooler assigns a server process to a client for one transaction only. A relay's prepared statements, its settings
and its application name, by which a successor ends it, would end up with other clients. Two sessions detect it:

1. The same server process serves both.
2. Or, while a transaction keeps the second session on one process, several processes serve the first session in turn.
"""

from collections.abc import Sequence
from typing import Any

import psycopg

from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import explained
from thresher.db.problem import DatabaseRefused
from thresher.db.statements import statement

# How often the process is asked for: enough for a pooler that assigns processes in turn.
_LOOKS = 4


def require_own_processes(one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
    """Raise `DatabaseRefused` unless each of two sessions in autocommit has, and keeps, a server process of its own."""
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
    """Whether two sessions share processes. `seen` and `others` are the processes that served each session in turn."""
    return len(set(seen)) > 1 or len(set(others)) > 1 or not set(seen).isdisjoint(others)


def _process(connection: psycopg.Connection[Any]) -> str:
    with explained():
        row = OwnCursor(connection).execute(statement("session_process"), prepare=False).fetchone()
    return "" if row is None else str(row[0])
