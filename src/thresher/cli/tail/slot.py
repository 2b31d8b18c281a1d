"""`thresher tail slot`: makes, checks and drops the slot and the publication by which a tail reads the log."""

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.options import DataSource, OutboxTable, SchemaName, TableShape, connect, resolve_dsn, table_name
from thresher.cli.output import AsJson, complain, emit_json, note, out
from thresher.cli.stack.choosing import StackName
from thresher.db.log_names import slot_name
from thresher.db.lsn import lsn_text
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import located
from thresher.outbox import Shape
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.slot import LogUnreadable, SlotCheck, check_slot, create_slot

app = Commands(help="Make, check or drop the slot by which a tail reads the log.", no_args_is_help=True)


class Via(enum.StrEnum):
    """Where an outbox keeps its messages."""

    TABLE = "table"
    LOG = "log"


ViaOption = Annotated[Via, typer.Option("--via", help="Whether messages are in a table, or in the log alone.")]
SlotOption = Annotated[str | None, typer.Option("--slot", help="The slot; thresher_OUTBOX without one.")]
PublicationOption = Annotated[
    str | None, typer.Option("--publication", help="The publication; called as the slot without one.")
]


@app.command()
def create(
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    shape: TableShape = Shape.THRESHER,
    via: ViaOption = Via.TABLE,
    slot: SlotOption = None,
    publication: PublicationOption = None,
) -> None:
    """Make the publication if there is none, then the slot: the log is kept from then on, so let a tail read it soon.

    Waits for transactions that are open. Exit code 4 where the server, or what you may do there, has to change first.
    """
    with _slots(ds, stack, outbox, schema, shape, via) as (slots, source, default):
        name = slot or default
        published, made = create_slot(slots, name, publication or name, source)
    if published:
        out.print(f"publication {publication or name} created", markup=False)
    kept = ", kept on standbys that synchronise slots" if made.failover else ""
    out.print(f"slot {name} created at {lsn_text(made.confirmed or 0)}{kept}", markup=False)


@app.command()
def check(
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    shape: TableShape = Shape.THRESHER,
    via: ViaOption = Via.TABLE,
    slot: SlotOption = None,
    publication: PublicationOption = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the log can be read, and how much of it is kept; exit code 4, and what mends it, if it cannot."""
    with _slots(ds, stack, outbox, schema, shape, via) as (slots, source, default):
        name = slot or default
        found = check_slot(slots, name, publication or name, source)
    if as_json:
        emit_json({"readable": not found.problems, **_plain(name, found)})
    else:
        for problem in found.problems:
            complain(str(problem))
        for warning in found.warnings:
            note(warning)
        if not found.problems and found.slot is not None:
            kept, start = found.slot.retained_bytes or 0, lsn_text(found.slot.confirmed or 0)
            out.print(
                f"slot {name} can be read from {start} on; the server keeps {kept:,} bytes of log for it",
                markup=False,
            )
    raise typer.Exit(LogUnreadable.exit_code if found.problems else 0)


@app.command()
def drop(
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    slot: SlotOption = None,
    with_publication: Annotated[
        str | None, typer.Option("--with-publication", help="A publication that is dropped with it.")
    ] = None,
) -> None:
    """Drop the slot, and with it what was committed and not published: nobody can read that from the log any more."""
    name = slot or slot_name(table_name(outbox, schema))
    with connect(resolve_dsn(ds, stack)) as connection:
        connection.autocommit = True
        slots = PostgresSlots(connection)
        slots.drop(name)
        if with_publication is not None:
            slots.drop_publication(with_publication)
    out.print(f"slot {name} dropped", markup=False)


@contextmanager
def _slots(
    ds: str | None, stack: str | None, outbox: str, schema: str | None, shape: Shape, via: Via
) -> Iterator[tuple[PostgresSlots, Source, str]]:
    name = table_name(outbox, schema)
    with connect(resolve_dsn(ds, stack)) as connection:
        connection.autocommit = True
        source: Source = LogSource(outbox=name)
        if via is Via.TABLE:
            source = TableSource(table=located(connection, name), shape=shape)
        yield PostgresSlots(connection), source, slot_name(name)


def _plain(name: str, found: SlotCheck) -> dict[str, object]:
    slot = found.slot
    return {
        "slot": name,
        "exists": slot is not None,
        "active": slot is not None and slot.active_pid is not None,
        "confirmed": None if slot is None or slot.confirmed is None else lsn_text(slot.confirmed),
        "retained_bytes": None if slot is None else slot.retained_bytes,
        "safe_bytes": None if slot is None else slot.safe_bytes,
        "wal_status": None if slot is None else slot.wal_status,
        "failover": slot is not None and slot.failover,
        "problems": [{"detail": problem.detail, "mend": problem.mend} for problem in found.problems],
        "warnings": list(found.warnings),
    }
