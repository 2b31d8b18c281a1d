"""`thresher adopt`: an operator confirms that a database or a progress topic has replaced the one of a relay."""

from typing import Annotated

import typer

from thresher.cli.options import DataSource, OutboxTable, SchemaName, on_own_path, resolve_dsn, table_name
from thresher.cli.output import result
from thresher.cli.stack.choosing import StackName
from thresher.core.errors import InvalidInput
from thresher.db.postgres.control import ControlTable
from thresher.db.postgres.sessions import exists, incarnation


def adopt(
    name: Annotated[str, typer.Argument(help="The name of the relay or tail.")],
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    instead_of: Annotated[str | None, typer.Option(help="The old name of the relay, if its name has changed.")] = None,
) -> None:
    """Let a relay or tail continue with this database, progress topic and slot.

    Needed after an upgrade or a restore into another database or system, after the progress topic or a tail's slot was
    lost, or to relay the outbox under another name. If the old topic is lost, rows that were published and not yet
    removed may be published again. Make sure that no other relay of this name, or of this outbox, runs.
    """
    named = table_name(outbox, schema)
    with on_own_path(resolve_dsn(ds, stack), named) as (connection, (placed,)):
        # Messages that only the WAL holds have no table.
        table = placed if exists(connection, placed.quoted()) else named
        control = ControlTable(connection, placed.schema)
        if not control.exists():
            raise InvalidInput(f"no relay of {table} has run on this database yet: check --ds, --outbox and --schema")
        # A table that an earlier version created lacks a column.
        control.create()
        if instead_of is not None and not control.rename(name, old=instead_of, outbox=table.quoted()):
            raise InvalidInput(f"{table} was not relayed under another name {instead_of!r}: check --instead-of")
        if not control.adopt(name, system_id=incarnation(connection, placed).system_id):
            raise InvalidInput(f"there is no relay {name!r} on this database")
    result(
        f"{name} belongs to this database now. At its next start it accepts the progress topic that it finds, and a "
        "tail its slot",
    )
