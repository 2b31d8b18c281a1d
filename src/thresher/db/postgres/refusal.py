"""Whether a database's error is one that a person has to act on, or one that time may mend."""

from psycopg import errors

# Classes of SQLSTATE that a person has to act on.
_REFUSED = (
    errors.InvalidAuthorizationSpecification,
    errors.InvalidPassword,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
    errors.DatatypeMismatch,
)
_REFUSED_STATES = frozenset(str(error.sqlstate) for error in _REFUSED)
# libpq gives no SQLSTATE for what happens while connecting.
_REFUSED_TEXTS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist")


def is_refused(state: str | None, text: str) -> bool:
    """Judge an error by its SQLSTATE, and where it has none by its text."""
    return state in _REFUSED_STATES or (state is None and any(part in text for part in _REFUSED_TEXTS))
