"""Whether a database's error is one that a person has to act on, or one that time may mend; and what they should do."""

from shlex import quote

from psycopg import errors

from thresher.db.names import TableName

# Credentials and permissions.
_ACCESS = (errors.InvalidAuthorizationSpecification, errors.InvalidPassword, errors.InsufficientPrivilege)
RIGHTS = "'thresher schema print --relay' has the tables, and the grants of roles that relay, write and operate"
# Classes of SQLSTATE that a person has to act on.
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
# libpq gives no SQLSTATE for what happens while connecting.
_ACCESS_TEXTS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
_REFUSED_TEXTS = (*_ACCESS_TEXTS, "does not exist")


def is_refused(state: str | None, text: str) -> bool:
    """Judge an error by its SQLSTATE, and where it has none by its text."""
    return state in _REFUSED_STATES or (state is None and any(part in text for part in _REFUSED_TEXTS))


def is_access_refused(state: str | None, text: str) -> bool:
    """Whether credentials or permissions were refused: that may pass, where one who rotates them is not done yet."""
    return state in _ACCESS_STATES or (state is None and any(part in text for part in _ACCESS_TEXTS))


def remedy(state: str | None, rights: str = RIGHTS) -> str:
    """Return what to do about an error, to be put behind its text; nothing, where the text says it.

    `rights` says where the missing ones are found.
    """
    return f"; {rights}" if state == errors.InsufficientPrivilege.sqlstate else ""


def no_such_table(table: TableName) -> str:
    """Return what to tell somebody whose outbox is not there."""
    schema = "" if table.schema is None else f" --schema {quote(table.schema)}"
    dotted = ", and a table in a schema is named by both --outbox and --schema" if "." in table.table else ""
    return (
        f"there is no table {table}: 'thresher schema create --outbox {quote(table.table)}{schema}' makes one{dotted}"
    )
