"""Which errors of the database are a record's own fault. All others are the database's, a lock's or an operator's."""

import psycopg

from thresher.capture.record import CONSTRAINT, TYPE, Flaw

# By the class of the SQLSTATE: what cannot be cast or is out of range; what a constraint, a view's check or a trigger
# refuses; a key that two texts mean, which halving tells apart.
_CLASSES = {"21": TYPE, "22": TYPE, "23": CONSTRAINT, "44": CONSTRAINT}
_STATES = {
    # A trigger's own exception.
    "P0001": CONSTRAINT,
    # A value that is too large for an index.
    "54000": TYPE,
}
# Deadlocks and serialization failures: the same transaction may succeed.
_PASSING = "40"


def flaw_of(error: psycopg.Error) -> Flaw | None:
    """Return the flaw of a record that this error tells of; None where no record is to blame."""
    state = error.sqlstate
    if state is None:
        # The driver's own, before anything is sent: a text with a NUL, a number that no type holds.
        kind = TYPE if isinstance(error, psycopg.DataError) else None
    else:
        kind = _STATES.get(state) or _CLASSES.get(state[:2])
    if kind is None:
        return None
    detail = error.diag.message_detail
    text = error.diag.message_primary or str(error)
    return Flaw(kind=kind, reason=" ".join(f"{text}{f': {detail}' if detail else ''}".split()))


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same transaction may succeed at once."""
    return error.sqlstate is not None and error.sqlstate.startswith(_PASSING)
