"""`thresher dead`: lists and shows dead rows, which could not be sent, and puts them back or drops them."""

from dataclasses import asdict
from typing import Annotated, Any

import psycopg
import typer

from thresher.cli.chosen_outbox import AnOutbox, AShape, ChosenOutbox, OutboxFile, chosen_outbox
from thresher.cli.layout.help_page import Commands
from thresher.cli.options import DataSource, SchemaName, on_own_path
from thresher.cli.output import (
    AsJson,
    Yes,
    counted,
    emit_field,
    emit_json,
    note,
    require_consent,
    require_terminal,
    result,
    table,
)
from thresher.cli.stack.choosing import StackName
from thresher.core.dead_kind import Kind
from thresher.core.errors import InvalidInput, shorten
from thresher.db.names import TableName
from thresher.db.outbox_store import DeadRow, DeadRows
from thresher.db.postgres.rights.dead_functions import reachable_dead_rows
from thresher.db.postgres.sessions import keep_to_own_path
from thresher.outbox.dead_to_log import replay_to_log

app = Commands(
    help="List rows that could not be sent, put them back into the outbox, or drop them.", no_args_is_help=True
)

Ids = Annotated[list[int] | None, typer.Argument(help="Ids of dead rows.")]
Topic = Annotated[str | None, typer.Option(help="Only rows of this topic.")]
KindName = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help=f"Only rows of this kind: {', '.join(Kind)}.")
]
All = Annotated[bool, typer.Option("--all", help="All dead rows.")]


@app.command("list")
def list_rows(
    config: OutboxFile = None,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: AnOutbox = None,
    schema: SchemaName = None,
    shape: AShape = None,
    topic: Topic = None,
    kind: KindName = None,
    rows: Annotated[int, typer.Option(help="Maximum number of rows.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead rows, oldest first."""
    _require_kind(kind)
    at = chosen_outbox(config, ds, stack, outbox, schema, shape)
    with on_own_path(at.dsn, at.table) as (connection, (placed,)):
        found = _dead(connection, placed, at).find(topic=topic, kind=kind, rows=rows + 1)
    shown = found[:rows]
    if as_json:
        emit_json({"rows": [_plain(row) for row in shown], "more": len(found) > rows})
        return
    table(
        "Dead rows",
        ["id", "topic", "key", "bytes", "since", "kind", "attempts", "blocks", "reason"],
        [
            [
                str(row.id),
                row.topic,
                _text(row.key) or "",
                "" if row.value_bytes is None else str(row.value_bytes),
                f"{row.dead_time:%Y-%m-%d %H:%M:%S}",
                row.kind,
                str(row.attempts),
                "its key" if row.blocking else "",
                row.reason,
            ]
            for row in shown
        ],
        importance=("id", "kind", "topic", "key", "reason", "since", "blocks"),
        shortened=("topic", "key", "reason"),
        rest="'thresher dead show ID'",
    )
    if len(found) > rows:
        result("there are more: raise --rows, or select by --topic or --kind")


@app.command()
def show(
    id_: Annotated[int, typer.Argument(metavar="ID", help="Id of the dead row.")],
    config: OutboxFile = None,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: AnOutbox = None,
    schema: SchemaName = None,
    shape: AShape = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead row with its content. Long values are cut; --json shows them whole."""
    at = chosen_outbox(config, ds, stack, outbox, schema, shape)
    with on_own_path(at.dsn, at.table) as (connection, (placed,)):
        found = _dead(connection, placed, at).show(id_)
    if not found:
        raise InvalidInput(f"there is no dead row {id_}")
    for content in found:
        whole = _plain(content.row) | {
            "value": _text(content.value),
            "headers": [[name, _text(value)] for name, value in content.headers],
        }
        if content.names_left:
            whole["names_without_value"] = list(content.names_left)
        if content.values_left:
            whole["values_without_name"] = list(map(_text, content.values_left))
        if as_json:
            emit_json(whole)
        else:
            for name, value in whole.items():
                emit_field(name, value)


@app.command()
def replay(
    ids: Ids = None,
    config: OutboxFile = None,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: AnOutbox = None,
    schema: SchemaName = None,
    shape: AShape = None,
    topic: Topic = None,
    kind: KindName = None,
    every: All = False,
    to_log: Annotated[bool, typer.Option("--to-log", help="Write to Postgres' WAL: the outbox has no table.")] = False,
    slot: Annotated[
        str | None, typer.Option("--slot", help="With --to-log: the tail's slot; by default thresher_OUTBOX.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put dead rows back into the outbox under their own ids, so that a running relay or tail sends them.

    Replayed rows count as new: their create time is now, and attempts are counted from the start. If several dead rows
    have one id, because the table's ids began at 1 again, the oldest is put back first, and later replays put back the
    others.
    """
    at = chosen_outbox(config, ds, stack, outbox, schema, shape)
    with on_own_path(at.dsn, at.table) as (connection, (placed,)):
        dead = _dead(connection, placed, at)
        found = _chosen(dead, ids, topic, kind, every=every)
        if to_log or at.in_log:
            by = slot or at.slot
            count = replay_to_log(connection, at.table, placed=placed, slot=by, topic=topic, kind=kind, ids=ids or None)
        else:
            count = dead.replay(topic=topic, kind=kind, ids=ids or None)
    _tell(count, "row was put back into the outbox", "rows were put back into the outbox", as_json)
    if len(found) > count:
        note(f"{len(found) - count:,} more have the same ids: replay them when these are sent")


@app.command()
def drop(
    ids: Ids = None,
    config: OutboxFile = None,
    ds: DataSource = None,
    stack: StackName = None,
    outbox: AnOutbox = None,
    schema: SchemaName = None,
    shape: AShape = None,
    topic: Topic = None,
    kind: KindName = None,
    every: All = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead rows for good: they were not sent, and never will be. Rows that they block are sent.

    Without ids, the command asks first. Rows that become dead meanwhile are not deleted.
    """
    _require_kind(kind)
    if asks := not ids and (every or topic is not None or kind is not None) and not yes:
        require_terminal(f"dead drop {'--all' if every else '--topic' if topic is not None else '--kind'}")
    at = chosen_outbox(config, ds, stack, outbox, schema, shape)
    with on_own_path(at.dsn, at.table) as (connection, (placed,)):
        dead = _dead(connection, placed, at)
        found = [row.id for row in _chosen(dead, ids, topic, kind, every=every)]
        if ids and (several := sorted({id_ for id_ in found if found.count(id_) > 1})):
            raise InvalidInput(
                f"several dead rows have the id {several[0]}: look at them with 'thresher dead show', and select by "
                "--topic or --kind instead; nothing was dropped"
            )
        if asks and found:
            # Keep no transaction open while the user decides.
            connection.commit()
            rows = counted(len(found), f"row of {at.table} that was", f"rows of {at.table} that were")
            require_consent(f"drop {rows} never sent, for good?")
            keep_to_own_path(connection)
        count = dead.drop(topic=topic, kind=kind, ids=found if asks else ids or None)
    _tell(count, "row was dropped", "rows were dropped", as_json)


def _tell(count: int, one: str, many: str, as_json: bool) -> None:
    if as_json:
        emit_json({"rows": count})
    else:
        result(counted(count, one, many))


def _dead(connection: psycopg.Connection[Any], placed: TableName, at: ChosenOutbox) -> DeadRows:
    return reachable_dead_rows(connection, placed, at.shape)


def _chosen(
    dead: DeadRows, ids: list[int] | None, topic: str | None, kind: str | None, *, every: bool
) -> list[DeadRow]:
    """Return the rows that the options select. Raises `InvalidInput` if nothing is selected: that never means all."""
    if not ids and topic is None and kind is None and not every:
        raise InvalidInput("no rows were selected: give ids, --topic, --kind or --all")
    if every and (ids or topic is not None or kind is not None):
        raise InvalidInput("--all means every row: give it alone, or ids, --topic or --kind without it")
    _require_kind(kind)
    found = dead.find(topic=topic, kind=kind, ids=ids or None)
    if missing := sorted(set(ids or []) - {row.id for row in found}):
        raise InvalidInput(f"no dead rows have the ids {', '.join(map(str, missing[:10]))}; nothing was changed")
    return found


def _require_kind(kind: str | None) -> None:
    """Raise for an unknown kind: finding no rows of it would look like a success."""
    if kind is not None and kind not in set(Kind):
        raise InvalidInput(f"--kind {shorten(kind)}: there is no such kind of dead row; there are {', '.join(Kind)}")


def _plain(row: DeadRow) -> dict[str, Any]:
    return asdict(row) | {
        "key": _text(row.key),
        "create_time": row.create_time.isoformat(),
        "dead_time": row.dead_time.isoformat(),
    }


def _text(content: bytes | str | None) -> str | None:
    return content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content
