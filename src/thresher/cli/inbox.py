"""`thresher inbox`: manages the tables by which a consumer recognises repeated messages, and its dead messages."""

import os
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from thresher.cli.layout.help_page import Commands
from thresher.cli.options import DataSource, SchemaName, connect, resolve_dsn, table_name
from thresher.cli.output import AsJson, Yes, complain, counted, emit_json, emit_text, result, table
from thresher.cli.stack.choosing import StackName, named_endpoints, stack_hint
from thresher.cli.stepping_over import step_over_batches
from thresher.config.property_pairs import properties
from thresher.core.errors import InvalidInput, shorten
from thresher.db.repeatable import repeatable
from thresher.inbox.dead import DeadMessage, dead_messages
from thresher.inbox.dead import drop as drop_dead
from thresher.inbox.inbox import TABLE, Inbox
from thresher.inbox.schema import check_inbox, create_inbox, inbox_ddl, inbox_grants, inbox_operator_grants

app = Commands(help="Print, create, check or trim the inbox table, or move a group over a batch.", no_args_is_help=True)
dead_app = Commands(help="List messages that no handler could process, or drop them.", no_args_is_help=True)
app.add_typer(dead_app, name="dead")

InboxTable = Annotated[
    str,
    typer.Option("--inbox", envvar="THRESHER_INBOX", help="Name of the inbox table, case-sensitive, without schema."),
]
Context = Annotated[str | None, typer.Option(help="Only messages of this context (application).")]
Ids = Annotated[list[int] | None, typer.Argument(help="Numbers of dead messages.")]


@app.command("print")
def print_ddl(
    inbox: InboxTable = TABLE,
    schema: SchemaName = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="Grant this role the rights of a consumer.")
    ] = None,
    operator_role: Annotated[
        str | None,
        typer.Option("--operator-role", metavar="ROLE", help="Grant this role the rights of 'thresher inbox'."),
    ] = None,
) -> None:
    """Print the DDL of the inbox's tables, for your migrations. It can be run repeatedly."""
    name = table_name(inbox, schema)
    emit_text(repeatable(inbox_ddl(name)))
    if role is not None:
        emit_text("\n".join(inbox_grants(name, role)))
    if operator_role is not None:
        emit_text("\n".join(inbox_operator_grants(name, operator_role)))


@app.command()
def create(
    ds: DataSource = None, stack: StackName = None, inbox: InboxTable = TABLE, schema: SchemaName = None
) -> None:
    """Create the inbox's tables; do nothing if usable ones exist already."""
    name = table_name(inbox, schema)
    with connect(resolve_dsn(ds, stack)) as connection:
        made = create_inbox(connection, name)
    result(f"{name} {'created' if made else 'is there already, and usable'}")


@app.command()
def check(
    ds: DataSource = None,
    stack: StackName = None,
    inbox: InboxTable = TABLE,
    schema: SchemaName = None,
    as_json: AsJson = False,
) -> None:
    """Check whether the table can serve as an inbox; exit code 1 if it cannot."""
    name = table_name(inbox, schema)
    with connect(resolve_dsn(ds, stack)) as connection:
        problems = check_inbox(connection, name)
    if as_json:
        emit_json({"table": str(name), "usable": not problems, "findings": list(problems)})
    else:
        for problem in problems:
            result(problem)
        if problems:
            complain(f"{name} cannot serve as an inbox")
        else:
            result(f"{name} can serve as an inbox")
    raise typer.Exit(1 if problems else 0)


@app.command()
def trim(
    older_than_days: Annotated[float, typer.Option(help="Remove rows older than this.", min=0.0)],
    ds: DataSource = None,
    stack: StackName = None,
    inbox: InboxTable = TABLE,
    schema: SchemaName = None,
    batch_rows: Annotated[int, typer.Option(help="Rows to remove per transaction.", min=1)] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Remove the rows of messages that were processed long ago.

    A message that is delivered again after its row was removed is processed again: keep rows for longer than your
    topics keep their records.
    """
    entered = Inbox(inbox, schema=schema)
    with connect(resolve_dsn(ds, stack)) as connection:
        connection.autocommit = True
        removed = entered.trim(connection, older_than_days * 86_400, batch_rows=batch_rows)
    if as_json:
        emit_json({"rows": removed})
    else:
        result(counted(removed, "row was removed", "rows were removed"))


@dead_app.command("list")
def list_dead(
    ds: DataSource = None,
    stack: StackName = None,
    inbox: InboxTable = TABLE,
    schema: SchemaName = None,
    context: Context = None,
    rows: Annotated[int, typer.Option(help="Maximum number of messages.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead messages, oldest first."""
    with connect(resolve_dsn(ds, stack)) as connection:
        found = dead_messages(connection, table_name(inbox, schema), context=context, most=rows + 1, whole=False)
    shown = found[:rows]
    if as_json:
        emit_json({"messages": [_plain(message) for message in shown], "more": len(found) > rows})
        return
    table(
        "Dead messages",
        ["number", "context", "id", "record", "since", "attempts", "reason"],
        [
            [
                str(message.id),
                message.context,
                shorten(message.message_id),
                f"{message.record.topic}/{message.record.partition}/{message.record.offset}",
                f"{message.dead_time:%Y-%m-%d %H:%M:%S}",
                str(message.attempts),
                shorten(message.reason),
            ]
            for message in shown
        ],
        importance=("number", "context", "id", "attempts", "reason", "since"),
        shortened=("id", "record"),
        rest="--json",
    )


@dead_app.command()
def drop(
    ids: Ids = None,
    ds: DataSource = None,
    stack: StackName = None,
    inbox: InboxTable = TABLE,
    schema: SchemaName = None,
) -> None:
    """Remove dead messages for good: they were not processed, and never will be."""
    if not ids:
        raise InvalidInput("no messages were named: give their numbers")
    name = table_name(inbox, schema)
    ids = sorted(set(ids))
    with connect(resolve_dsn(ds, stack)) as connection:
        missing = [each for each in ids if not drop_dead(connection, name, each)]
        if missing:
            connection.rollback()
            raise InvalidInput(f"no such messages: {', '.join(map(str, missing[:10]))}; nothing was changed")
    result(counted(len(ids), "message was dropped", "messages were dropped"))


@app.command()
def step_over(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics that the group consumes.")],
    group: Annotated[str, typer.Option(help="The group.id of the consumers.")],
    bootstrap: Annotated[
        str | None, typer.Option(envvar="THRESHER_BOOTSTRAP", help="Kafka's brokers, as HOST:PORT[,HOST:PORT…].")
    ] = None,
    stack: StackName = None,
    kafka: Annotated[
        list[str] | None, typer.Option(help="A property of the consumers, as key=value; may be repeated.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a consumer group over batches of its topics that cannot be decompressed.

    A partition stands still before such a batch, and the consumers' log names the offset. If a larger
    receive.message.max.bytes lets the consumers read the batch, no message is lost: try that first. Otherwise stop the
    group's consumers and step over: messages in the batch are then never processed.
    """
    from thresher.inbox.stepping_over import step_over as move  # noqa: PLC0415
    from thresher.inbox.stepping_over import stuck_partitions  # noqa: PLC0415

    if stack is not None and bootstrap not in {None, os.environ.get("THRESHER_BOOTSTRAP")}:
        raise InvalidInput("--bootstrap and --stack both name the broker: leave one of them out")
    servers = named_endpoints(stack).bootstrap if stack is not None else bootstrap
    if not servers:
        raise InvalidInput(f"no Kafka: give --bootstrap, {stack_hint()}")
    given = {**properties(kafka, "--kafka"), "bootstrap.servers": servers}
    step_over_batches(
        "inbox step-over",
        lambda: list(stuck_partitions(given, group, sorted(set(topics)))),
        partial(move, given),
        where=lambda each: f"{each.topic}/{each.partition}",
        plain=asdict,
        lost="Messages in them are never processed",
        yes=yes,
        as_json=as_json,
    )


def _plain(message: DeadMessage) -> dict[str, Any]:
    plain = asdict(message)
    record = plain.pop("record")
    return {
        **plain,
        "dead_time": message.dead_time.isoformat(),
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
        "key": None if record["key"] is None else record["key"].decode(errors="backslashreplace"),
    }
