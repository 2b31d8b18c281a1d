"""`thresher tail run`, `join` and `leave`: runs a tail, and switches an outbox between a relay and a tail."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import name_database
from thresher.cli.output import counted, hide, result, write_to_log
from thresher.cli.stack.choosing import StackName, with_stack
from thresher.core.secrets import mask_logs
from thresher.db.lsn import lsn_text
from thresher.db.outbox_store import Settling
from thresher.observe.logs import LogFormat, configure_logging

if TYPE_CHECKING:
    from thresher.tail.configuration import TailConfiguration, TailForm

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="THRESHER_CONFIG", help="YAML file. Environment variables and flags override it."
    ),
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more: the same as --log-level debug.")] = False,
) -> None:
    """Publish the committed messages of an outbox, exactly once and in commit order, until SIGINT or SIGTERM.

    Several processes may run under one name: one leads, the others stand by. With --election none, the newest leads.
    The first signal finishes open transactions, the second does not wait. Exit codes: 0 stopped as asked, 1 failed: may
    be restarted, 2 invalid configuration, 3 superseded by a newer tail (without an election: do not restart), 4 a
    person has to act: wal_level, a permission, a publication, a slot, lost WAL.
    """
    # Imported here: the other commands work without the tail's packages.
    from thresher.cli.serving import log_places, pages_shown  # noqa: PLC0415
    from thresher.spark.driver.signals import stopped_by_signals  # noqa: PLC0415
    from thresher.tail.tail import Tail  # noqa: PLC0415

    loaded = _loaded(config, stack, {**flags, "log_level": "debug"} if verbose else flags)
    keys = loaded.form
    log_places(keys)
    tail = Tail(
        loaded.settings,
        election=loaded.election,
        spark=keys.spark_options,
        policy=loaded.policy,
        metrics_seconds=keys.metrics_seconds,
        step_down_seconds=keys.step_down_seconds,
    )
    by_default = "status" not in loaded.completed.given
    pages = pages_shown(tail, keys.status_address, by_default=by_default, hosts=keys.status_hosts, config=config)
    with stopped_by_signals(tail), pages:
        tail.start()
        tail.wait()
    result(f"stopped; {counted(tail.relayed, 'row', 'rows')} published")


def join(
    config: ConfigFile = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    settled: Annotated[
        Settling, typer.Option("--settle", help="The relay's setting: whether it deletes or stamps sent rows.")
    ] = Settling.DELETE,
) -> None:
    """Switch an outbox table from a relay to a tail, which reads the WAL and does not poll the table.

    Before: pause writers until the relay has drained the table, then stop the relay's processes. If a row is pending,
    nothing is changed. Writers may run during the switch itself: it locks the table for a moment.
    """
    from thresher.relay.leader.take_over import give_up  # noqa: PLC0415
    from thresher.relay.settings import Settings  # noqa: PLC0415
    from thresher.tail.leader import switching  # noqa: PLC0415

    settings = _loaded(config, stack, flags).settings
    name_database(settings.dsn)
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
    result(f"{settings.outbox} is read from the WAL from {lsn_text(begins)} on: start the tail")


def leave(config: ConfigFile = None, stack: StackName = None, *, flags: Mapping[str, Any]) -> None:
    """Switch an outbox table from a tail to a relay, which polls the table. The slot is dropped.

    Before: pause writers until the tail has published everything, then stop the tail's processes. If a row was not
    published, nothing is changed. The rows in the table, which were published, are deleted.
    """
    from thresher.tail.leader import switching  # noqa: PLC0415

    settings = _loaded(config, stack, flags).settings
    name_database(settings.dsn)
    deleted = switching.leave(settings)
    result(
        f"{settings.outbox} belongs to a relay from now on; deleted from it: "
        f"{counted(deleted, 'row that was published', 'rows that were published')}. Start the relay",
    )


def _loaded(config: Path | None, stack: str | None, flags: Mapping[str, Any]) -> "TailConfiguration":
    from thresher.config.function_paths import search_beside  # noqa: PLC0415
    from thresher.tail.configuration import load_tail_config  # noqa: PLC0415

    remarks: list[str] = []
    loaded = load_tail_config(config, with_stack(flags, stack), os.environ, warn=remarks.append)
    completed, keys = loaded.completed, loaded.form
    remarks += search_beside(config, loaded.settings.transforms)
    hide(completed.secrets.mask)
    configure_logging(keys.log_format, keys.log_level)
    mask_logs(completed.secrets)
    write_to_log(logging.getLogger("thresher") if keys.log_format is LogFormat.JSON else None)
    for remark in remarks:
        logging.getLogger("thresher").warning(remark)
    return loaded
