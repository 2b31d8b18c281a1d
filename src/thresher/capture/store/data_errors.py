"""Decides what caused a database error: a record, a statement, or the database itself (a lock, an operator).

An error counts as a record's unless it is known to be of another cause: otherwise a bad record would stop its shard for
ever. If the cause is a general one after all, `most_dead_in_a_row` stops the capture.
"""

import psycopg

from thresher.capture.record import CONSTRAINT, TYPE, Flaw
from thresher.db.postgres.refusal import is_refused

# Classes of SQLSTATEs: connections, roll-backs, resources, operator intervention, system errors, configuration,
# foreign data.
_DATABASES_CLASSES = frozenset({"08", "40", "53", "57", "58", "F0", "HV"})
# Read-only, idle or long transactions, objects in use, locks, damaged data and indexes.
_DATABASES_STATES = frozenset({"25006", "25P03", "25P04", "55006", "55P03", "XX001", "XX002"})
# Our own statements are correct, so the table has changed: the check of its schema reports that.
_STATEMENTS_CLASSES = frozenset({"0A", "25", "26", "42", "55"})
# Some types (tsquery, jsonpath) report a value that they cannot read as a syntax error.
_SYNTAX_OF_VALUE = "42601"
# Values that cannot be cast, are out of range or too large, or that a type reports as an internal error; and two texts
# that mean the same key. All other classes are constraints, views and triggers, which may have codes of their own.
_TYPE_CLASSES = frozenset({"21", "22", "42", "54", "XX"})
# Deadlocks and serialization failures: the same transaction may succeed.
_PASSING = "40"


def flaw_of(error: psycopg.Error) -> Flaw | None:
    """Return the flaw of the record that caused this error of our own statement; None if no record caused it."""
    state = error.sqlstate
    if state is None:
        # psycopg's own error, before anything is sent: a text with a NUL, or a number too large for any type.
        kind = TYPE if isinstance(error, psycopg.DataError) else None
    elif is_databases_fault(error) or (state[:2] in _STATEMENTS_CLASSES and state != _SYNTAX_OF_VALUE):
        kind = None
    else:
        kind = TYPE if state[:2] in _TYPE_CLASSES else CONSTRAINT
    if kind is None:
        return None
    detail = error.diag.message_detail
    text = error.diag.message_primary or str(error)
    return Flaw(kind=kind, reason=" ".join(f"{text}{f': {detail}' if detail else ''}".split()))


def is_databases_fault(error: psycopg.Error) -> bool:
    """Whether neither a record nor a statement caused the error."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state[:2] in _DATABASES_CLASSES or state in _DATABASES_STATES or is_refused(state, "")


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same transaction may succeed if it is repeated at once."""
    return error.sqlstate is not None and error.sqlstate.startswith(_PASSING)
