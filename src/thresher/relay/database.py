"""The relay's sessions in the outbox's database, and what their errors mean.

Every session carries the term in its name, so that a successor can end it; is never left idle in a transaction for
long; and has a time-out on a silent network, so that a vanished database is noticed.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import conninfo

from thresher.core.errors import PipelineProblem
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.refusal import is_refused

# The head is found by its index, one bucket after another; every other plan is worse, whatever the statistics say, and
# one plan does for all.
_OPTIONS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off "
    "-c plan_cache_mode=force_generic_plan -c max_parallel_workers_per_gather=0 "
    "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off "
    "-c idle_in_transaction_session_timeout=15s -c synchronous_commit=on -c TimeZone=UTC -c client_encoding=UTF8"
)
# Limits that a role or a server sets for its applications: an idle shard's sessions would be ended, and what takes long
# would be broken off, only to be begun again. Who wants one for the relay says so in the connection string.
_UNLIMITED = "-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0"
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


def session(dsn: str, application: str, more: str = "") -> str:
    """Return the connection string of a relay's session; `more` are options of the server's."""
    given = conninfo.conninfo_to_dict(dsn)
    options = f"{_UNLIMITED} {given.get('options') or ''} {_OPTIONS} {more}".rstrip()
    network = {name: value for name, value in _NETWORK.items() if name not in given}
    return conninfo.make_conninfo(dsn, application_name=application, options=options, **network)


def connect(dsn: str, application: str) -> psycopg.Connection[Any]:
    """Connect, in autocommit. Raises `DatabaseRefused` or `DatabaseLost`."""
    with explained():
        return psycopg.connect(session(dsn, application), autocommit=True)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        text = str(error.diag.message_primary or error).strip()
        raise explain(error.sqlstate, " ".join(text.split())) from error


def explain(state: str | None, text: str) -> PipelineProblem:
    """Decide whether somebody has to act, or time may mend it."""
    # A driver may add all of its query, with all of its values.
    text = " ".join(text.partition("Query was:")[0].split())
    if is_refused(state, text):
        return DatabaseRefused(f"the database refused: {text}")
    return DatabaseLost(f"the database failed: {text}")
