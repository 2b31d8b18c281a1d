"""`thresher tail run`, `join` and `leave`: the tail as a program, from a file, the environment and flags."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.output import counted, hide, out, result, tell_by
from thresher.cli.stack.choosing import StackName, with_stack
from thresher.core.secrets import mask_logs
from thresher.db.lsn import lsn_text
from thresher.db.outbox_store import Settling
from thresher.observe.logs import LogFormat, configure_logging

if TYPE_CHECKING:
    from thresher.tail.configuration import TailConfiguration, TailForm

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="THRESHER_CONFIG", help="YAML file with any of these keys.")
]


def form() -> "type[TailForm]":
    """Return the form whose flags the commands have."""
    from thresher.tail.configuration import TailForm  # noqa: PLC0415

    return TailForm


def run(
    config: ConfigFile = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more: --log-level debug.")] = False,
) -> None:
    """Publish what is committed to an outbox, exactly once and in the order of commits, until SIGINT or SIGTERM.

    Of several that are started with one name, one leads and the others wait for their turn, unless --election is none:
    then the newest leads. The first signal finishes what is open, the second does not wait. Exit codes: 0 stopped as
    asked, 1 it failed and may be started again, 2 the configuration cannot work, 3 superseded by a newer tail of the
    same name (do not restart), 4 somebody has to act: wal_level, a right, a publication, a slot, log that is lost.
    """
    # Only here: the other commands work without the tail's packages.
    from thresher.cli.serving import pages_shown  # noqa: PLC0415
    from thresher.spark.driver.signals import stopped_by_signals  # noqa: PLC0415
    from thresher.tail.tail import Tail  # noqa: PLC0415

    # A transform in the directory where it was started is found by the workers too.
    sys.path.insert(0, str(Path.cwd()))
    loaded = _loaded(config, stack, {**flags, "log_level": "debug"} if verbose else flags)
    keys = loaded.form
    tail = Tail(
        loaded.settings,
        election=loaded.election,
        spark=keys.spark_options,
        policy=loaded.policy,
        metrics_seconds=keys.metrics_seconds,
        step_down_seconds=keys.step_down_seconds,
    )
    by_default = "status" not in loaded.completed.given
    with stopped_by_signals(tail), pages_shown(tail, keys.status_address, by_default=by_default, config=config):
        tail.start()
        tail.wait()
    result(f"stopped; {counted(tail.relayed, 'row', 'rows')} published")


def join(
    config: ConfigFile = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    settled: Annotated[
        Settling, typer.Option("--settle", help="What the relay does with rows that it sent.")
    ] = Settling.DELETE,
) -> None:
    """Let a tail follow a relay on the same table: from now on the log is read, and the table is not polled.

    Stop the relay's processes first, and let writers stand still until it has drained the table: with a row that waits,
    nothing is changed. Writers need not stop for the switch itself, which keeps them waiting for a moment.
    """
    from thresher.relay.leader.take_over import give_up  # noqa: PLC0415
    from thresher.relay.settings import Settings  # noqa: PLC0415
    from thresher.tail.leader import switching  # noqa: PLC0415

    settings = _loaded(config, stack, flags).settings
    switching.require_table(settings)
    term = give_up(
        Settings(
            name=settings.name,
            data_source=settings.dsn,
            outbox=settings.outbox,
            shape=settings.shape,
            kafka=settings.kafka,
            producer=settings.producer,
            settle=settled,
        )
    )
    begins = switching.join(settings, term)
    out.print(f"{settings.outbox} is read from the log from {lsn_text(begins)} on: start the tail", markup=False)


def leave(config: ConfigFile = None, stack: StackName = None, *, flags: Mapping[str, Any]) -> None:
    """Let a relay follow a tail on the same table: the slot is dropped, and the table is polled from now on.

    Stop the tail's processes first, when it has published everything and writers stand still: with a row that was not
    published, nothing is changed. Rows that stayed in the table were published, and are deleted.
    """
    from thresher.tail.leader import switching  # noqa: PLC0415

    settings = _loaded(config, stack, flags).settings
    deleted = switching.leave(settings)
    out.print(
        f"{settings.outbox} is a relay's from now on; deleted from it: "
        f"{counted(deleted, 'row that was published', 'rows that were published')}. Start the relay",
        markup=False,
    )


def _loaded(config: Path | None, stack: str | None, flags: Mapping[str, Any]) -> "TailConfiguration":
    from thresher.tail.configuration import load_tail_config  # noqa: PLC0415

    remarks: list[str] = []
    loaded = load_tail_config(config, with_stack(flags, stack), os.environ, warn=remarks.append)
    completed, keys = loaded.completed, loaded.form
    hide(completed.secrets.mask)
    configure_logging(keys.log_format, keys.log_level)
    mask_logs(completed.secrets)
    tell_by(logging.getLogger("thresher") if keys.log_format is LogFormat.JSON else None)
    for remark in remarks:
        logging.getLogger("thresher").warning(remark)
    return loaded
