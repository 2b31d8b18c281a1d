"""`thresher capture`: runs the pipeline from topics to tables, and has the commands of its operators."""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.advising import advised, plain_advice, show_advice
from thresher.cli.form_command import add_form_command
from thresher.cli.layout.help_page import Commands
from thresher.cli.output import (
    AsJson,
    Yes,
    complain,
    counted,
    emit_json,
    emit_text,
    hide,
    note,
    result,
    table,
    working,
    write_to_log,
)
from thresher.cli.stack.choosing import StackName, with_stack
from thresher.cli.stepping_over import step_over_batches
from thresher.core.errors import InvalidInput, shorten
from thresher.core.secrets import mask_logs
from thresher.observe.logs import LogFormat, configure_logging

if TYPE_CHECKING:
    from psycopg import Connection

    from thresher.capture.configuration import CaptureConfiguration, CaptureForm
    from thresher.capture.settings import CaptureSettings
    from thresher.capture.store.dead import DeadRecord

app = Commands(help="Write the records of Kafka topics to database tables (event state capture).", no_args_is_help=True)
schema_app = Commands(help="Print, create or check the tables of a capture.", no_args_is_help=True)
dead_app = Commands(
    help="List records that could not be applied, apply them again, or drop them.", no_args_is_help=True
)
app.add_typer(schema_app, name="schema")
app.add_typer(dead_app, name="dead")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="THRESHER_CONFIG", help="YAML file. Environment variables and flags override it."
    ),
]
Ids = Annotated[list[int] | None, typer.Argument(help="Numbers of dead records.")]
_EARLIEST = "earliest"


def form() -> "type[CaptureForm]":
    """Return the form whose flags the command has."""
    from thresher.capture.configuration import CaptureForm  # noqa: PLC0415

    return CaptureForm


def run(
    config: ConfigFile = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more: the same as --log-level debug.")] = False,
) -> None:
    """Write the records of captured topics to their tables, until SIGINT or SIGTERM.

    Several processes may run under one name: one leads, the others stand by. The first signal finishes the open batch,
    the second does not wait. Exit codes: 0 stopped as asked, 1 failed: may be restarted, 2 invalid configuration, 3
    superseded by a newer capture (without an election: do not restart), 4 a person has to act: a table, a permission, a
    topic that was recreated, records that are gone, or too many dead records in a row.
    """
    # Imported here: the other commands work without the capture's packages.
    from thresher.capture.capture import Capture  # noqa: PLC0415
    from thresher.cli.serving import log_places, pages_shown  # noqa: PLC0415
    from thresher.spark.driver.signals import stopped_by_signals  # noqa: PLC0415

    remarks: list[str] = []
    loaded = _load(config, with_stack({**flags, "log_level": "debug"} if verbose else flags, stack), remarks)
    keys, completed = loaded.form, loaded.completed
    configure_logging(keys.log_format, keys.log_level)
    mask_logs(completed.secrets)
    write_to_log(logging.getLogger("thresher") if keys.log_format is LogFormat.JSON else None)
    for remark in remarks:
        logging.getLogger("thresher").warning(remark)
    log_places(keys)
    capture = Capture(loaded)
    by_default = "status" not in completed.given
    pages = pages_shown(capture, keys.status_address, by_default=by_default, hosts=keys.status_hosts, config=config)
    with stopped_by_signals(capture), pages:
        capture.start()
        capture.wait()
    result(f"stopped; {counted(capture.captured, 'record', 'records')} captured")


add_form_command(app, "run", run, form)


@app.command()
def rewind(
    to: Annotated[str, typer.Option(help="'earliest', or a time with its zone: 2026-11-18T02:00:00Z.")],
    config: ConfigFile = None,
    stack: StackName = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also write rows that are up to date, because the mapping has changed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read the topics again and apply the newest record of each key. No reader sees an older state.

    Rows that are up to date are not touched. A running capture waits until this ends. Exit code 1 if any record could
    not be applied.
    """
    from thresher.capture.rewinding import Rewound  # noqa: PLC0415
    from thresher.capture.rewinding import rewind as apply_again  # noqa: PLC0415

    since_ms = milliseconds_of(to)
    settings = _named(_settings(config, stack))
    began = time.monotonic()
    with working("reading", None) as progress:

        def told(done: Rewound) -> None:
            rate = f"{done.records / max(0.001, time.monotonic() - began):,.0f}"
            progress.update(progress.task_ids[0], completed=done.records, rate=rate)

        done = apply_again(settings, since_ms, again=again, told=told)
    for topic in done.left_out:
        note(f"{topic} was left out: rows that a handler writes have no guard columns")
    if as_json:
        emit_json(asdict(done))
    else:
        read = counted(done.records, "record was read", "records were read")
        keys = counted(done.keys, "key", "keys")
        result(f"{read}, the newest of {keys} applied")
        for batch in done.unreadable:
            complain(f"{batch} cannot be decompressed, and were stepped over")
        for failure in done.failures:
            complain(failure)
    if done.failed:
        complain(f"{done.failed:,} could not be applied: their rows were left as they are")
        raise typer.Exit(1)


@app.command()
def adopt(config: ConfigFile = None, stack: StackName = None, as_json: AsJson = False) -> None:
    """Accept topics whose stored offsets are no longer in the log, and let the capture continue.

    A topic that was recreated is captured from its first record. Records that were removed before they were captured
    are skipped: the output says how many offsets.
    """
    from thresher.capture.adopting import adopt as adopt_topics  # noqa: PLC0415

    changed = adopt_topics(_named(_settings(config, stack)))
    if as_json:
        emit_json({"changed": [asdict(each) for each in changed]})
        return
    for each in changed:
        topic, partition = each.place
        result(f"{topic}/{partition}: {each.before} is now {each.now}: {each.why}")
    if not changed:
        result("every stored offset is in its log: nothing was changed")


@app.command()
def step_over(config: ConfigFile = None, stack: StackName = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Move the capture over batches of its topics that cannot be decompressed.

    A partition stands still before such a batch, and an alarm names the offset. If a larger receive.message.max.bytes
    in 'consumer' lets the capture read the batch, no record is lost: try that first. Otherwise step over: records in
    the batch are then never captured. A running capture goes on behind it.
    """
    from thresher.capture.stepping_over import step_over as move  # noqa: PLC0415
    from thresher.capture.stepping_over import stuck_partitions  # noqa: PLC0415

    settings = _named(_settings(config, stack))
    step_over_batches(
        "capture step-over",
        lambda: list(stuck_partitions(settings)),
        partial(move, settings),
        where=lambda each: "{}/{}".format(*each.place),
        plain=lambda each: {"topic": each.place[0], "partition": each.place[1], "batch": asdict(each.batch)},
        lost="Records in them are never captured",
        yes=yes,
        as_json=as_json,
    )


@schema_app.command("print")
def print_ddl(
    config: ConfigFile = None,
    stack: StackName = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="Grant this role the rights of the capture.")
    ] = None,
    waiting_role: Annotated[
        str | None,
        typer.Option("--waiting-role", metavar="ROLE", help="Grant this role the right to wait for captured records."),
    ] = None,
) -> None:
    """Print the DDL of capture's own tables, and of the guard columns of yours, for your migrations."""
    from thresher.capture.store.grants import capture_grants, waiting_grants  # noqa: PLC0415
    from thresher.capture.store.schema import capture_ddl  # noqa: PLC0415
    from thresher.election.lease import lease_ddl, lease_grants  # noqa: PLC0415

    settings = _settings(config, stack)
    tables, name = settings.tables, settings.name
    emit_text(capture_ddl(tables, settings.mappings))
    if role is not None:
        emit_text(lease_ddl(tables.schema))
        emit_text("\n".join(capture_grants(tables, settings.mappings, role, capture=name)))
        emit_text("\n".join(lease_grants(tables.schema, role, names=[settings.lease])))
    if waiting_role is not None:
        emit_text("\n".join(waiting_grants(tables, waiting_role, capture=name)))


@schema_app.command()
def create(config: ConfigFile = None, stack: StackName = None) -> None:
    """Create capture's own tables, and add the guard columns to yours, where they are missing."""
    from thresher.capture.store.schema import create_schema, schema_problems  # noqa: PLC0415

    settings = _settings(config, stack)
    with _prepared(settings) as (connection, settings):
        create_schema(connection, settings.tables, settings.mappings)
        problems = schema_problems(connection, settings.tables, settings.mappings)
    if problems:
        found = "\n".join(problems)
        complain(f"capture's own tables exist, but the database is not ready for this capture:\n{found}")
        raise typer.Exit(1)
    result("the tables exist")


@schema_app.command()
def check(config: ConfigFile = None, stack: StackName = None, as_json: AsJson = False) -> None:
    """Check the database of a capture, and say how to repair each problem; exit code 1 if there is one.

    The captured topics are looked at too: advice on limits, compression, retention and replicas changes no exit code.
    """
    from thresher.capture.start_offsets import captured_uses  # noqa: PLC0415
    from thresher.capture.store.schema import schema_problems  # noqa: PLC0415

    settings = _settings(config, stack)
    with _prepared(settings) as (connection, settings):
        problems = schema_problems(connection, settings.tables, settings.mappings)
    advice = advised(settings.kafka, lambda: captured_uses(settings))
    if as_json:
        emit_json({"usable": not problems, "findings": list(problems), **plain_advice(advice)})
    else:
        for problem in problems:
            result(problem)
        if problems:
            complain("the database is not ready for this capture")
        else:
            result("the database is ready for this capture")
        show_advice(advice)
    raise typer.Exit(1 if problems else 0)


@dead_app.command("list")
def list_dead(
    config: ConfigFile = None,
    stack: StackName = None,
    topic: Annotated[str | None, typer.Option(help="Only records of this topic.")] = None,
    rows: Annotated[int, typer.Option(help="Maximum number of records.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead records, which could not be applied, oldest first."""
    found = _dead(_settings(config, stack), topic=topic, most=rows + 1)
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


@dead_app.command()
def show(
    number: Annotated[int, typer.Argument(help="Number of the dead record.")],
    config: ConfigFile = None,
    stack: StackName = None,
) -> None:
    """Print one dead record with its value, as JSON."""
    found = _dead(_settings(config, stack), ids=[number], whole=True)
    if not found:
        raise InvalidInput(f"no such record: {number}")
    record = found[0].record
    headers = {name: _shown(value) for name, value in record.headers}
    emit_json(_plain(found[0]) | {"headers": headers, "value": _shown(record.value)})


@dead_app.command()
def retry(ids: Ids = None, config: ConfigFile = None, stack: StackName = None, as_json: AsJson = False) -> None:
    """Apply dead records again, after their cause was repaired.

    A record is too late if a later record of its key is in its partition: it is removed and not applied. Exit code 1 if
    any record failed again.
    """
    from thresher.capture.retrying import Outcome  # noqa: PLC0415
    from thresher.capture.retrying import retry as retry_dead  # noqa: PLC0415

    settings = _settings(config, stack)
    wanted = _wanted(settings, ids)
    outcomes = retry_dead(settings, wanted)
    if as_json:
        emit_json({"outcomes": {str(number): outcome for number, outcome in outcomes.items()}})
    else:
        for number, outcome in outcomes.items():
            result(f"{number}: {outcome}")
    raise typer.Exit(1 if Outcome.FAILED in outcomes.values() else 0)


@dead_app.command()
def drop(ids: Ids = None, config: ConfigFile = None, stack: StackName = None) -> None:
    """Remove dead records for good: they are never applied."""
    from thresher.capture.store.dead import DeadRecords  # noqa: PLC0415
    from thresher.capture.store.explained import explained  # noqa: PLC0415

    settings = _settings(config, stack)
    wanted = _wanted(settings, ids)
    with _prepared(settings) as (connection, settings), explained():
        dead = DeadRecords(connection, settings.tables, settings.name)
        dropped = sum(dead.take(number) for number in wanted)
    result(counted(dropped, "record was dropped", "records were dropped"))


def _load(config: Path | None, flags: Mapping[str, Any], remarks: list[str]) -> "CaptureConfiguration":
    from thresher.capture.configuration import load_capture_config  # noqa: PLC0415
    from thresher.config.function_paths import search_beside  # noqa: PLC0415

    loaded = load_capture_config(config, flags, os.environ, warn=remarks.append)
    remarks += search_beside(config, loaded.settings.functions)
    hide(loaded.completed.secrets.mask)
    return loaded


def _settings(config: Path | None, stack: str | None) -> "CaptureSettings":
    loaded = _load(config, with_stack({}, stack), [])
    configure_logging(level="warning")
    mask_logs(loaded.completed.secrets)
    return loaded.settings


@contextmanager
def _prepared(settings: "CaptureSettings") -> Iterator["tuple[Connection[Any], CaptureSettings]"]:
    """Connect for one transaction that finds nothing that others have planted; yield it and the tables' schemas."""
    from thresher.capture.settings import settings_placed_by  # noqa: PLC0415
    from thresher.cli.options import connect  # noqa: PLC0415
    from thresher.db.postgres.sessions import keep_to_own_path  # noqa: PLC0415

    with connect(settings.dsn) as connection:
        found = settings_placed_by(connection, settings)
        keep_to_own_path(connection)
        yield connection, found


def _named(settings: "CaptureSettings") -> "CaptureSettings":
    """Tell people which database a command changes that connects by itself."""
    from thresher.cli.options import name_database  # noqa: PLC0415

    name_database(settings.dsn)
    return settings


def milliseconds_of(to: str) -> int | None:
    """Return the time that `--to` names, in milliseconds since 1970; None for all records. Raises `InvalidInput`."""
    if to == _EARLIEST:
        return None
    try:
        found = datetime.fromisoformat(to)
    except ValueError:
        raise InvalidInput(
            f"--to: {shorten(to)} is neither 'earliest' nor a time, such as 2026-11-18T02:00:00Z"
        ) from None
    if found.tzinfo is None:
        raise InvalidInput(f"--to: {to} has no time zone: write {to}Z for UTC")
    since_ms = (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    # Kafka takes -1 for the end of the topic.
    return max(0, since_ms)


def _dead(settings: "CaptureSettings", **wanted: Any) -> "list[DeadRecord]":
    from thresher.capture.store.dead import DeadRecords  # noqa: PLC0415
    from thresher.capture.store.explained import explained  # noqa: PLC0415

    with _prepared(settings) as (connection, placed), explained():
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
