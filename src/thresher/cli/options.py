"""Options that several commands share, and the database connection that they name."""

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, Any

import psycopg
import typer

from thresher.cli.output import hide, note
from thresher.cli.stack.choosing import named_endpoints, stack_hint
from thresher.core.errors import InvalidInput, ThresherError
from thresher.core.secrets import Secrets, SecretText, Unreadable, read_secret, revealed
from thresher.db import TableName
from thresher.db.postgres.dsn import check_dsn, secrets_of_dsn, shown_databases
from thresher.db.postgres.refusal import is_access_refused
from thresher.db.postgres.sessions import keep_to_own_path, placed
from thresher.devstack.named_stack import NamedStack
from thresher.outbox import Shape

_DS_VARIABLES = ["THRESHER_DS", "THRESHER_DATA_SOURCE"]
DataSource = Annotated[
    str | None,
    typer.Option(
        "--ds",
        "--data-source",
        envvar=_DS_VARIABLES,
        show_envvar=True,
        help="Postgres connection string or URL; by default that of the running local stack. THRESHER_DS_FILE names a "
        "file that holds it.",
    ),
]
OutboxTable = Annotated[
    str,
    typer.Option(
        "--outbox", envvar="THRESHER_OUTBOX", help="Name of the outbox table, case-sensitive, without schema."
    ),
]
SchemaName = Annotated[
    str | None,
    typer.Option(
        "--schema", envvar="THRESHER_SCHEMA", help="Schema of the table; by default, the search_path decides."
    ),
]
TableShape = Annotated[
    Shape,
    typer.Option("--shape", envvar="THRESHER_SHAPE", help="Layout of the table: our own, goharvest's or Deimos'."),
]


class DatabaseUnreachable(ThresherError):  # noqa: N818
    """No connection to the database."""

    retryable = True


class AccessRefused(ThresherError):  # noqa: N818
    """The database refuses the role or the password: a person has to act."""

    exit_code = 4


def named_dsn(given: str | None) -> str | None:
    """Return the given connection string, or the content of the file that the environment names; None without both."""
    # Typer does not say whether a value is from the flag or from a variable.
    source = next((name for name in _DS_VARIABLES if given and os.environ.get(name) == given), "--ds")
    for variable in ("THRESHER_DS_FILE", "THRESHER_DATA_SOURCE_FILE"):
        if not given and (path := os.environ.get(variable)):
            try:
                given, source = read_secret(path), variable
            except Unreadable as error:
                raise InvalidInput(f"{variable}: {error}") from None
    if not given:
        return None
    hide(Secrets(secrets_of_dsn(given)).mask)
    try:
        check_dsn(given)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from None
    return given


def resolve_dsn(given: str | None, stack: str | None = None) -> str:
    """Return the connection string that was named, or that of the local stack. Raises `InvalidInput` without both.

    A named stack overrides the environment. A named stack together with a flag for the database is refused.
    """
    if stack is not None:
        require_no_flag(given)
        return named_endpoints(stack).dsn
    if (dsn := named_dsn(given)) is not None:
        return dsn
    endpoints = NamedStack().endpoints()
    if endpoints is None:
        raise InvalidInput(f"no database: give --ds or THRESHER_DS, {stack_hint()}")
    note("using the database of the local stack")
    return endpoints.dsn


def is_flag(ds: str | None) -> bool:
    """Whether a data source was given by a flag, and not by the environment."""
    return ds is not None and ds not in {os.environ.get(name) for name in _DS_VARIABLES}


def require_no_flag(ds: str | None) -> None:
    """Raise if a flag names a database, although a stack is named. A stack overrides the environment."""
    if is_flag(ds):
        raise InvalidInput("--ds and --stack both name the database: leave one of them out")


def name_database(dsn: SecretText) -> None:
    """Tell people which database a command works on."""
    note(f"database {shown_databases(dsn)}")


def connect(dsn: SecretText) -> psycopg.Connection[Any]:
    """Name the database and connect, or raise with the driver's reason, which has no password in it."""
    name_database(dsn)
    return opened(dsn)


def opened(dsn: SecretText, **parameters: str) -> psycopg.Connection[Any]:
    """Connect, or raise with the driver's reason; `parameters` are libpq's."""
    given = psycopg.conninfo.make_conninfo(
        revealed(dsn), connect_timeout="10", application_name="thresher", **parameters
    )
    try:
        return psycopg.connect(given)
    except psycopg.OperationalError as error:
        problem = AccessRefused if is_access_refused(error.sqlstate, str(error)) else DatabaseUnreachable
        raise problem(f"cannot connect to the database: {str(error).strip()}") from error


@contextlib.contextmanager
def on_own_path(dsn: SecretText, *tables: TableName) -> Iterator[tuple[psycopg.Connection[Any], tuple[TableName, ...]]]:
    """Connect for one transaction, and yield the connection and the tables with their schemas.

    The names are looked up by the search_path of the role or the connection string. Then the transaction finds nothing
    that others have planted. A session behind a pooler has its old path again at the end.
    """
    with connect(dsn) as connection:
        found = placed(connection, *tables)
        keep_to_own_path(connection)
        yield connection, found


def table_name(outbox: str, schema: str | None) -> TableName:
    """Return the table that the options name."""
    return TableName(table=outbox, schema=schema)
