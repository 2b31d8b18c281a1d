"""`thresher capture dead`: lists records that could not be applied, applies them again, or drops them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.capture.loading import ConfigFile, prepared, settings_of
from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, counted, emit_json, result, table
from thresher.cli.stack.choosing import StackName
from thresher.core.errors import InvalidInput, shorten

if TYPE_CHECKING:
    from thresher.capture.settings import CaptureSettings
    from thresher.capture.store.dead import DeadRecord

app = Commands(help="List records that could not be applied, apply them again, or drop them.", no_args_is_help=True)

Ids = Annotated[list[int] | None, typer.Argument(help="Numbers of dead records.")]


@app.command("list")
def list_dead(
    config: ConfigFile = None,
    stack: StackName = None,
    topic: Annotated[str | None, typer.Option(help="Only records of this topic.")] = None,
    rows: Annotated[int, typer.Option(help="Maximum number of records.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead records, which could not be applied, oldest first."""
    found = _dead(settings_of(config, stack), topic=topic, most=rows + 1)
    shown = found[:rows]
    if as_json:
        emit_json({"records": [_plain(each) for each in shown], "more": len(found) > rows})
        return
    table(
        "Records that could not be applied",
        ["number", "record", "key", "since", "kind", "reason"],
        [
            [
                str(each.id),
                f"{each.record.topic}/{each.record.partition}/{each.record.offset}",
                _shown(each.record.key) or "",
                f"{each.dead_time:%Y-%m-%d %H:%M:%S}",
                each.flaw.kind,
                shorten(each.flaw.reason),
            ]
            for each in shown
        ],
        importance=("number", "record", "kind", "since", "key", "reason"),
        shortened=("record", "key"),
        rest="'thresher capture dead show NUMBER'",
    )


@app.command()
def show(
    number: Annotated[int, typer.Argument(help="Number of the dead record.")],
    config: ConfigFile = None,
    stack: StackName = None,
) -> None:
    """Print one dead record with its value, as JSON."""
    found = _dead(settings_of(config, stack), ids=[number], whole=True)
    if not found:
        raise InvalidInput(f"no such record: {number}")
    record = found[0].record
    headers = {name: _shown(value) for name, value in record.headers}
    emit_json(_plain(found[0]) | {"headers": headers, "value": _shown(record.value)})


@app.command()
def retry(ids: Ids = None, config: ConfigFile = None, stack: StackName = None, as_json: AsJson = False) -> None:
    """Apply dead records again, after their cause was repaired.

    A record is too late if a later record of its key is in its partition: it is removed and not applied. Exit code 1 if
    any record failed again.
    """
    from thresher.capture.retrying import Outcome  # noqa: PLC0415
    from thresher.capture.retrying import retry as retry_dead  # noqa: PLC0415

    settings = settings_of(config, stack)
    wanted = _wanted(settings, ids)
    outcomes = retry_dead(settings, wanted)
    if as_json:
        emit_json({"outcomes": {str(number): outcome for number, outcome in outcomes.items()}})
    else:
        for number, outcome in outcomes.items():
            result(f"{number}: {outcome}")
    raise typer.Exit(1 if Outcome.FAILED in outcomes.values() else 0)


@app.command()
def drop(ids: Ids = None, config: ConfigFile = None, stack: StackName = None) -> None:
    """Remove dead records for good: they are never applied."""
    from thresher.capture.store.dead import DeadRecords  # noqa: PLC0415
    from thresher.capture.store.explained import explained  # noqa: PLC0415

    settings = settings_of(config, stack)
    wanted = _wanted(settings, ids)
    with prepared(settings) as (connection, settings), explained():
        dead = DeadRecords(connection, settings.tables, settings.name)
        dropped = sum(dead.take(number) for number in wanted)
    result(counted(dropped, "record was dropped", "records were dropped"))


def _dead(settings: "CaptureSettings", **wanted: Any) -> "list[DeadRecord]":
    from thresher.capture.store.dead import DeadRecords  # noqa: PLC0415
    from thresher.capture.store.explained import explained  # noqa: PLC0415

    with prepared(settings) as (connection, placed), explained():
        return DeadRecords(connection, placed.tables, placed.name).list(**wanted)


def _wanted(settings: "CaptureSettings", ids: list[int] | None) -> list[int]:
    """Return the numbers, sorted. Raises `InvalidInput` if none is given, or if one is no dead record."""
    if not ids:
        raise InvalidInput("no records were named: give their numbers")
    wanted = sorted(set(ids))
    there = {each.id for each in _dead(settings, ids=wanted)}
    if missing := [each for each in wanted if each not in there]:
        raise InvalidInput(f"no such records: {', '.join(map(str, missing[:10]))}; nothing was changed")
    return wanted


def _plain(dead: "DeadRecord") -> dict[str, Any]:
    record = dead.record
    return {
        "id": dead.id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _shown(record.key),
        "value_bytes": dead.value_bytes,
        "dead_time": dead.dead_time.isoformat(),
        "kind": dead.flaw.kind,
        "reason": dead.flaw.reason,
    }


def _shown(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="backslashreplace")
