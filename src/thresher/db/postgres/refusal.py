"""Whether somebody has to act on a database's error, or a retry may help; and what to do about it."""

from shlex import quote

from psycopg import errors

from thresher.db.names import TableName

# Credentials and permissions.
_ACCESS = (errors.InvalidAuthorizationSpecification, errors.InvalidPassword, errors.InsufficientPrivilege)
RIGHTS = "'thresher schema print --relay' prints the tables, and the grants that each role needs"
SLOT_RIGHTS = "docs/tail.md, under 'Separate roles', tells which role makes what, and the grants that each needs"
# Errors that somebody has to act on.
_REFUSED = (
    *_ACCESS,
    errors.InvalidCatalogName,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
    errors.DatatypeMismatch,
)
_REFUSED_STATES = frozenset(str(error.sqlstate) for error in _REFUSED)
_ACCESS_STATES = frozenset(str(error.sqlstate) for error in _ACCESS)
# What a search_path does not find.
_UNKNOWN_STATES = frozenset(str(error.sqlstate) for error in (errors.UndefinedTable, errors.UndefinedFunction))
# libpq gives no SQLSTATE for errors while connecting.
_ACCESS_TEXTS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
_REFUSED_TEXTS = (*_ACCESS_TEXTS, "does not exist")


def is_refused(state: str | None, text: str) -> bool:
    """Whether somebody has to act on an error, judged by its SQLSTATE, or without one by its text."""
    return state in _REFUSED_STATES or (state is None and any(part in text for part in _REFUSED_TEXTS))


def is_access_refused(state: str | None, text: str) -> bool:
    """Whether credentials or permissions were refused. This may be temporary, while they are being rotated."""
    return state in _ACCESS_STATES or (state is None and any(part in text for part in _ACCESS_TEXTS))


def remedy(state: str | None, text: str, rights: str = RIGHTS, *, context: str | None = None) -> str:
    """Return what to do about an error, to append to its text; empty if the text says it already.

    A policy of a relay's tables names the relay, so another name is the usual reason that it refuses a row. `rights`
    says which command prints the missing grants, `context` in which function the error occurred.
    """
    if context and state in _UNKNOWN_STATES:
        return (
            f" ({' '.join(context.split())}); functions of triggers are called with our search_path, pg_catalog: "
            "ALTER FUNCTION … SET search_path = … gives a function its own"
        )
    if state != errors.InsufficientPrivilege.sqlstate:
        return ""
    named = "is `name` the printed --relay-name? " if rights == RIGHTS and "row-level security" in text else ""
    return f"; {named}{rights}"


def no_such_table(table: TableName) -> str:
    """Return the error message for an outbox table that does not exist."""
    schema = "" if table.schema is None else f" --schema {quote(table.schema)}"
    dotted = ", and a table in a schema is named by both --outbox and --schema" if "." in table.table else ""
    return (
        f"there is no table {table}: 'thresher schema create --outbox {quote(table.table)}{schema}' makes one{dotted}"
    )
