"""`thresher capture`: runs the pipeline from topics to tables, and has the commands of its operators."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.capture.dead import app as dead_app
from thresher.cli.capture.loading import ConfigFile, load_config, named, settings_of
from thresher.cli.capture.schema import app as schema_app
from thresher.cli.form_command import add_form_command
from thresher.cli.layout.help_page import Commands
from thresher.cli.output import AsJson, Yes, complain, counted, emit_json, note, result, working, write_to_log
from thresher.cli.stack.choosing import StackName, with_stack
from thresher.cli.stepping_over import step_over_batches
from thresher.core.errors import InvalidInput, shorten
from thresher.core.secrets import mask_logs
from thresher.observe.logs import LogFormat, configure_logging

if TYPE_CHECKING:
    from thresher.capture.configuration import CaptureForm

app = Commands(help="Write the records of Kafka topics to database tables (event state capture).", no_args_is_help=True)
app.add_typer(schema_app, name="schema")
app.add_typer(dead_app, name="dead")

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
    loaded = load_config(config, with_stack({**flags, "log_level": "debug"} if verbose else flags, stack), remarks)
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
    settings = named(settings_of(config, stack))
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

    changed = adopt_topics(named(settings_of(config, stack)))
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

    settings = named(settings_of(config, stack))
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
