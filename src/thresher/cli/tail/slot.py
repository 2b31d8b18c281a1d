"""`thresher tail slot`: creates, checks and drops the replication slot and the publication of a tail."""

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import Annotated, Any

import typer
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from thresher.cli.layout.help_page import Commands
from thresher.cli.options import (
    DataSource,
    OutboxTable,
    SchemaName,
    TableShape,
    connect,
    opened,
    resolve_dsn,
    table_name,
)
from thresher.cli.output import AsJson, complain, emit_json, note, result
from thresher.cli.stack.choosing import StackName
from thresher.core.errors import InvalidInput
from thresher.db.log_emitter import LogEmitter, emit_function, keys_table
from thresher.db.log_names import slot_name
from thresher.db.lsn import lsn_text
from thresher.db.names import TableName
from thresher.db.postgres.refusal import no_such_table
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import OWN_PATH, exists, placed
from thresher.db.problem import DatabaseRefused
from thresher.outbox import Shape
from thresher.tail.log_source import LogSource, Source, TableSource
from thresher.tail.slot import LogUnreadable, SlotCheck, check_slot, create_slot, emitter_problems

app = Commands(help="Create, check or drop the replication slot of a tail.", no_args_is_help=True)


class Via(enum.StrEnum):
    """The place of an outbox's messages."""

    TABLE = "table"
    LOG = "log"


ViaOption = Annotated[Via, typer.Option("--via", help="Place of the messages: a table, or the WAL alone.")]
SlotOption = Annotated[str | None, typer.Option("--slot", help="Name of the slot; by default thresher_OUTBOX.")]
PublicEmitOption = Annotated[
    bool,
    typer.Option("--accept-public-emit", help="With --via log: every role may write to the WAL, and that is accepted."),
]
PublicationOption = Annotated[
    str | None, typer.Option("--publication", help="Name of the publication; by default that of the slot.")
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
    """Create the publication, if it is missing, and the slot. From then on the server keeps its WAL: start a tail soon.

    Waits for the end of open transactions. Exit code 4 if a setting of the server or your permissions have to change
    first.
    """
    with _slots(ds, stack, outbox, schema, shape, via) as (slots, source, default):
        name = slot or default
        published, made = create_slot(slots, name, publication or name, source)
        rights = (
            _rights(slots.emitter(source.outbox, source.placed).read(), source) if isinstance(source, LogSource) else []
        )
    if published:
        result(f"publication {publication or name} created")
    kept = ", kept on standbys that synchronise slots" if made.failover else ""
    result(f"slot {name} created at {lsn_text(made.confirmed or 0)}{kept}")
    for right in rights:
        note(right)


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
    accept_public_emit: PublicEmitOption = False,
    as_json: AsJson = False,
) -> None:
    """Check whether the WAL can be read, and how much of it is kept; exit code 4 and a remedy if it cannot.

    Run it as the tail's role: the rights that it checks are those of the role that runs it.
    """
    with _slots(ds, stack, outbox, schema, shape, via, accepting=accept_public_emit) as (slots, source, default):
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
            result(
                f"slot {name} can be read from {start} on; the server keeps {kept:,} bytes of WAL for it",
            )
    raise typer.Exit(LogUnreadable.exit_code if found.problems else 0)


@app.command()
def key(
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
) -> None:
    """Add a key with which messages of an outbox without a table are sealed; create the function if it is missing.

    Running tails read a new key by themselves. Messages that an older key sealed are published while it is there.
    """
    name = table_name(outbox, schema)
    with _connected(ds, stack, name) as (connection, within):
        emitter = PostgresSlots(connection).emitter(name, within)
        if schema is None and (elsewhere := emitter.elsewhere()):
            raise InvalidInput(
                f"an outbox {outbox} is in schema {', '.join(elsewhere)}: add --schema {quote(elsewhere[0])}, or "
                f"--schema {quote(within.schema or '')} for one there, as tail and writers name it; nothing was made"
            )
        made = emitter.create()
        number = None if made else emitter.new_key()
        rights = _rights(emitter.read(), LogSource(outbox=name, placed=within))
    if number is not None:
        result(f"key {number} added to {keys_table(within)}: messages are sealed with it from now on")
        return
    result(f"function {emit_function(within)} and its keys {keys_table(within)} created")
    for right in rights:
        note(right)


@app.command()
def drop(
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    slot: SlotOption = None,
    with_publication: Annotated[
        str | None, typer.Option("--with-publication", help="Drop this publication too.")
    ] = None,
) -> None:
    """Drop the slot. Messages that were not published yet can then no longer be read from the WAL."""
    table = table_name(outbox, schema)
    name = slot or slot_name(table)
    with _connected(ds, stack, table) as (connection, _):
        slots = PostgresSlots(connection)
        slots.drop(name)
        if with_publication is not None:
            slots.drop_publication(with_publication)
    result(f"slot {name} dropped")


@contextmanager
def _slots(
    ds: str | None,
    stack: str | None,
    outbox: str,
    schema: str | None,
    shape: Shape,
    via: Via,
    *,
    accepting: bool = False,
) -> Iterator[tuple[PostgresSlots, Source, str]]:
    name = table_name(outbox, schema)
    with _connected(ds, stack, name) as (connection, within):
        source: Source = LogSource(outbox=name, placed=within, accept_public_emit=accepting)
        if via is Via.TABLE:
            if not exists(connection, within.quoted()):
                raise DatabaseRefused(no_such_table(name))
            source = TableSource(table=within, shape=shape)
        yield PostgresSlots(connection), source, slot_name(name)


@contextmanager
def _connected(ds: str | None, stack: str | None, outbox: TableName) -> Iterator[tuple[Connection[Any], TableName]]:
    """Yield a session of ours in autocommit, as slots need it, and the outbox's name with its schema."""
    dsn = resolve_dsn(ds, stack)
    with connect(dsn) as looking:
        (within,) = placed(looking, outbox)
    given = conninfo_to_dict(dsn).get("options") or ""
    with opened(dsn, options=f"{given} {OWN_PATH}") as connection:
        connection.autocommit = True
        yield connection, within


def _rights(found: LogEmitter, source: LogSource) -> list[str]:
    """Return the grants that are left to do."""
    granted = [
        f"writers need: GRANT EXECUTE ON FUNCTION {found.function}(bytea) TO …",
        f"the tail's role needs: GRANT SELECT ON {found.keys} TO …",
    ]
    return [*granted, *map(str, emitter_problems(found, source))]


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
        # `of_tail`: to be granted to the tail's role alone, whoever has asked.
        "problems": [{"detail": each.detail, "mend": each.mend, "of_tail": each.of_tail} for each in found.problems],
        "warnings": list(found.warnings),
    }
