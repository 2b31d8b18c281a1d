"""`thresher schema`: prints the DDL of the outbox table, creates the table, or checks an existing one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import typer

from thresher.archive.manifests import BATCHES, archive_ddl
from thresher.cli.advising import advised, plain_advice, show_advice
from thresher.cli.chosen_outbox import AnOutbox, AShape, ChosenOutbox, OutboxFile, chosen_outbox
from thresher.cli.layout.help_page import Commands
from thresher.cli.options import (
    DataSource,
    OutboxTable,
    SchemaName,
    TableShape,
    connect,
    resolve_dsn,
    table_name,
)
from thresher.cli.output import AsJson, complain, emit_json, emit_text, result
from thresher.cli.stack.choosing import StackName
from thresher.core.errors import InvalidInput
from thresher.db import TableName
from thresher.db.postgres.catalog import own_table_problems
from thresher.db.postgres.control import ControlTable, control_table, modes_name
from thresher.db.postgres.own_tables.lock_rows import lock_table
from thresher.db.postgres.own_tables.wait_rows import wait_table
from thresher.db.postgres.rights.ddl import owner_faults
from thresher.db.postgres.rights.dead_functions import dead_function_names
from thresher.db.postgres.sessions import exists, keep_to_own_path, placed
from thresher.db.postgres.topic_locks import create_locks, locks_ddl, locks_table
from thresher.db.repeatable import repeatable
from thresher.db.strangers import PARTITIONED, PLAIN
from thresher.election.lease import LEASES
from thresher.harvest.grants import dispatcher_grants, operator_grants, relay_grants, writer_grants
from thresher.outbox import Shape, check_schema, create_schema, ddl
from thresher.outbox.schema import Finding
from thresher.relay.names import companions

if TYPE_CHECKING:
    from thresher.kafka.topic_advice import TopicUse

TopicLock = Annotated[
    bool,
    typer.Option("--topic-lock", help="Include the lock table and the index that 'coordination: topic-lock' needs."),
]

# What brings the tables of an earlier version up to date.
_MADE = "run what 'thresher schema print --relay' prints, or let a relay start that owns the tables"

app = Commands(help="Print, create or check the outbox table.", no_args_is_help=True)


@app.command("print")
def print_ddl(
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    shape: TableShape = Shape.THRESHER,
    relay: Annotated[
        bool,
        typer.Option("--relay", help="Include the tables of relay and archive, if they may not create them."),
    ] = False,
    topic_lock: TopicLock = False,
    relay_role: Annotated[
        str | None,
        typer.Option(
            "--relay-role",
            metavar="ROLE",
            help="Grant this role the rights of a relay or tail. Needs --relay or --grants, and --relay-name.",
        ),
    ] = None,
    relay_name: Annotated[
        str | None, typer.Option("--relay-name", metavar="NAME", help="The name of the relay or tail that it runs.")
    ] = None,
    writer_role: Annotated[
        str | None, typer.Option("--writer-role", metavar="ROLE", help="Grant this role the rights of a writer.")
    ] = None,
    operator_role: Annotated[
        str | None,
        typer.Option(
            "--operator-role",
            metavar="ROLE",
            help="Grant this role the rights of 'thresher dead'. Needs --relay or --grants.",
        ),
    ] = None,
    dispatcher_role: Annotated[
        str | None,
        typer.Option(
            "--dispatcher-role",
            metavar="ROLE",
            help="Grant this role the rights of a dispatcher. Needs --relay or --grants.",
        ),
    ] = None,
    functions_role: Annotated[
        str | None,
        typer.Option(
            "--functions-role",
            metavar="ROLE",
            help="The owner of the functions that operators and dispatchers call, a role without login: by default "
            "thresher_DATABASE_SCHEMA, by the names where the statements run.",
        ),
    ] = None,
    grants: Annotated[bool, typer.Option("--grants", help="Print the grants alone: the tables exist already.")] = False,
) -> None:
    """Print the DDL of the outbox table, for your migrations; with --relay, all tables and the grants.

    The DDL can be run repeatedly: existing tables stay as they are. Grants to roles without a name are comments. With
    grants, every name has its schema: by default public.
    """
    given = {"--relay-role": relay_role, "--operator-role": operator_role, "--dispatcher-role": dispatcher_role}
    for flag, role in given.items():
        if role is not None and not (relay or grants):
            raise InvalidInput(f"{flag} needs --relay, which prints the tables that are granted, or --grants")
    if relay_role is not None and relay_name is None:
        raise InvalidInput("--relay-role needs --relay-name: the role gets the rows of that relay alone")
    if dispatcher_role is not None and shape is not Shape.THRESHER:
        raise InvalidInput("--dispatcher-role: only Thresher's own shape has the stamp that a dispatcher sets")
    name = table_name(outbox, schema or ("public" if relay or grants or writer_role is not None else None))
    if not grants:
        emit_text(repeatable("\n".join(_ddl(name, shape, relay=relay, topic_lock=topic_lock))))
    if relay or grants:
        granted = relay_grants(name, shape, relay_role or "relay", name=relay_name or "NAME", topic_lock=topic_lock)
        _emit_grants("A role that may only run one relay or tail:", granted, named=relay_role is not None)
    if relay or grants or writer_role is not None:
        granted = writer_grants(name, shape, writer_role or "writer")
        _emit_grants("A role that may only write:", granted, named=writer_role is not None)
    if operator_role is not None:
        granted = operator_grants(name, shape, operator_role, owner=functions_role)
        _emit_grants("A role that may only use 'thresher dead':", granted)
    if dispatcher_role is not None:
        granted = dispatcher_grants(name, dispatcher_role, owner=functions_role)
        _emit_grants("A role that may only send the rows of receipts:", granted)


def _ddl(name: TableName, shape: Shape, *, relay: bool, topic_lock: bool) -> Iterator[str]:
    yield ddl(name, shape)
    if relay:
        yield from companions(name, shape)
        if shape is Shape.THRESHER:
            yield from archive_ddl(name)
    if topic_lock:
        yield from locks_ddl(name, shape)


def _emit_grants(title: str, grants: Iterable[str], *, named: bool = True) -> None:
    """Print grants; as comments, if no role was named."""
    lines = "\n".join(grants).splitlines()
    emit_text("\n".join([f"-- {title}", *(line if named else f"-- {line}" for line in lines)]))


@app.command()
def create(
    ds: DataSource = None,
    stack: StackName = None,
    outbox: OutboxTable = "outbox",
    schema: SchemaName = None,
    shape: TableShape = Shape.THRESHER,
    topic_lock: TopicLock = False,
) -> None:
    """Create the outbox table; do nothing if a usable one exists already."""
    name = table_name(outbox, schema)
    with connect(resolve_dsn(ds, stack)) as connection:
        made = create_schema(connection, name, shape)
        if topic_lock:
            create_locks(connection, name, shape)
    result(f"{name} {'created' if made else 'is there already, and usable'}")


@app.command()
def check(
    config: OutboxFile = None,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: AnOutbox = None,
    schema: SchemaName = None,
    shape: AShape = None,
    as_json: AsJson = False,
) -> None:
    """Compare the table with its expected layout; exit code 1 if a difference breaks a guarantee.

    The tables of relay, election and archive beside it are checked too: no stranger may run code by them, and an
    earlier version's are told. So is the owner of the functions: no stranger may act as it. With the file of a relay or
    tail, there is advice on its progress topic too, which changes no exit code.
    """
    chosen = chosen_outbox(config, ds, stack, outbox, schema, shape)
    name = chosen.table
    if chosen.in_log:
        raise InvalidInput(f"the messages of {name} are in no table: 'thresher tail slot check' checks what there is")
    with connect(chosen.dsn) as connection:
        outcome = check_schema(connection, name, chosen.shape)
        outcome = replace(outcome, findings=(*outcome.findings, *_beside(connection, name, chosen.shape)))
    advice = None if chosen.kafka is None else advised(chosen.kafka, lambda: _uses(chosen))
    if as_json:
        findings = [
            {"severity": finding.severity, "subject": finding.subject, "detail": finding.detail}
            for finding in outcome.findings
        ]
        emit_json({"table": str(name), "usable": outcome.usable, "findings": findings, **plain_advice(advice)})
    else:
        for finding in outcome.findings:
            result(str(finding))
        if outcome.usable:
            result(f"{name} can serve as an outbox")
        else:
            complain(f"{name} cannot serve as an outbox")
        show_advice(advice)
    raise typer.Exit(0 if outcome.usable else 1)


def _uses(chosen: ChosenOutbox) -> "list[TopicUse]":
    from thresher.delivery.progress_topic.topic import progress_use  # noqa: PLC0415

    return [progress_use(chosen.progress)]


def _beside(connection: psycopg.Connection[Any], name: TableName, shape: Shape) -> Iterator[Finding]:
    """Yield what is wrong with functions and tables beside the outbox. There are none before the first relay."""
    with connection.transaction(force_rollback=True):
        (outbox,) = placed(connection, name)
        keep_to_own_path(connection)
        control = control_table(outbox.schema).quoted()
        lease, batches = (TableName(table=table, schema=outbox.schema).quoted() for table in (LEASES, BATCHES))
        needed = [outbox.companion("_dead"), lock_table(outbox.schema).quoted(), wait_table(outbox.schema).quoted()]
        letters = [outbox.companion("_dead"), outbox.companion("_archive")]
        plain = [control, *needed[1:], lease, batches, locks_table(outbox, shape)]
        if shape is Shape.DEIMOS:
            # The check of the outbox has looked at Deimos' own table.
            plain.pop()
        for table, kinds in [*((each, PARTITIONED) for each in letters), *((each, PLAIN) for each in plain)]:
            for problem in own_table_problems(connection, table, kinds):
                yield Finding(severity="breaks", subject=table, detail=problem)
        functions = [modes_name(outbox), *dead_function_names(outbox)]
        for fault in owner_faults(connection, outbox.schema or "", functions):
            yield Finding(severity="breaks", subject=f"functions of {outbox}", detail=fault)
        if not exists(connection, control):
            return
        for table in needed:
            if not exists(connection, table):
                yield Finding(severity="differs", subject=table, detail=f"missing, although a relay was here: {_MADE}")
        if not ControlTable(connection, outbox.schema).current():
            yield Finding(severity="differs", subject=control, detail=f"made by an earlier version: {_MADE}")
