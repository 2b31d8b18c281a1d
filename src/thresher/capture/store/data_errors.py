"""Whose fault an error of the database is: a record's own, a statement's, or the database's, a lock's or an operator's.

A record is to blame unless something else is known to be: one that is blamed for nothing would stop its shard for ever.
`most_dead_in_a_row` tells a general fault.
"""

import psycopg

from thresher.capture.record import CONSTRAINT, TYPE, Flaw
from thresher.db.postgres.refusal import is_refused

# By the class of the SQLSTATE. Connections, roll-backs, resources, operators, the system, configuration, foreign data.
_DATABASES_CLASSES = frozenset({"08", "40", "53", "57", "58", "F0", "HV"})
# Read-only, idle or long transactions, objects in use, locks, damaged data and indexes.
_DATABASES_STATES = frozenset({"25006", "25P03", "25P04", "55006", "55P03", "XX001", "XX002"})
# Our own statements are right: the table has changed, which a look at its schema tells.
_STATEMENTS_CLASSES = frozenset({"0A", "25", "26", "42", "55"})
# Some types call a text that they cannot read a syntax error: tsquery, jsonpath.
_SYNTAX_OF_VALUE = "42601"
# What cannot be cast, is out of range or too large, and what a type calls an internal error; a key that two texts mean.
# All others are constraints, views and triggers, whose codes may be their own.
_TYPE_CLASSES = frozenset({"21", "22", "42", "54", "XX"})
# Deadlocks and serialization failures: the same transaction may succeed.
_PASSING = "40"


def flaw_of(error: psycopg.Error) -> Flaw | None:
    """Return the flaw of a record that this error of our own statement tells of; None where no record is to blame."""
    state = error.sqlstate
    if state is None:
        # The driver's own, before anything is sent: a text with a NUL, a number that no type holds.
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
    """Whether neither a record nor a statement is to blame."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state[:2] in _DATABASES_CLASSES or state in _DATABASES_STATES or is_refused(state, "")


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same transaction may succeed at once."""
    return error.sqlstate is not None and error.sqlstate.startswith(_PASSING)
