"""`thresher adopt`: an operator's word that a database or a progress topic has replaced the one a relay knew."""

from typing import Annotated

import typer

from thresher.cli.options import DataSource, OutboxTable, SchemaName, connect, resolve_dsn, table_name
from thresher.cli.output import out
from thresher.core.errors import InvalidInput


def adopt(
    name: Annotated[str, typer.Argument(help="The relay's name.")],
    ds: DataSource = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
) -> None:
    """Let a relay go on with this database and whatever progress topic it finds.

    After an upgrade or a restore into another database or system, or when the progress topic was lost. Without the old
    topic, what was published last and not yet removed may be published again. Make sure that no other relay of that
    name runs.
    """
    from thresher.relay.control import ControlTable, incarnation  # noqa: PLC0415

    with connect(resolve_dsn(ds)) as connection:
        connection.autocommit = True
        table = table_name(outbox, schema)
        system = incarnation(connection, table).system_id
        control = ControlTable(connection, table)
        if not control.run("adopt", name=name, system_id=system):
            raise InvalidInput(f"there is no relay {name!r} on this database")
    out.print(f"the relay {name} belongs to this database now; its progress topic is looked at anew", markup=False)
