"""`thresher run`: runs a relay, configured by a file, the environment and flags."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.output import counted, hide, note, result, write_to_log
from thresher.cli.stack.choosing import StackName, with_stack
from thresher.core.secrets import mask_logs
from thresher.devstack.named_stack import NamedStack
from thresher.observe.logs import LogFormat, configure_logging

if TYPE_CHECKING:
    from thresher.harvest.form import RelayForm


def form() -> "type[RelayForm]":
    """Return the form whose flags the command has."""
    from thresher.harvest.form import RelayForm  # noqa: PLC0415

    return RelayForm


def run(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", envvar="THRESHER_CONFIG", help="YAML file. Environment variables and flags override it."
        ),
    ] = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more: the same as --log-level debug.")] = False,
) -> None:
    """Relay the outbox to Kafka, in order per key, exactly once or at least once, until SIGINT or SIGTERM.

    Several processes may run under one name: one leads, the others stand by. With --election none, the newest leads.
    The first signal finishes open transactions, the second does not wait. Exit codes: 0 stopped as asked, 1 failed: may
    be restarted, 2 invalid configuration, 3 superseded by a newer relay (without an election: do not
    restart), 4 a person has to act: password, permission, missing table, progress topic of another relay.
    """
    # Imported here: the other commands work without the relay's packages.
    from thresher.cli.serving import log_places, pages_shown  # noqa: PLC0415
    from thresher.config.function_paths import search_beside  # noqa: PLC0415
    from thresher.harvest.configuration import load  # noqa: PLC0415
    from thresher.harvest.harvest import Harvest  # noqa: PLC0415
    from thresher.spark.driver.signals import stopped_by_signals  # noqa: PLC0415

    given = with_stack(flags, stack)
    overrides = {**given, "log_level": "debug"} if verbose else given
    remarks: list[str] = []
    loaded = load(config, overrides, os.environ, warn=remarks.append, otherwise=_local_stack)
    remarks += search_beside(config, loaded.settings.transform)
    hide(loaded.secrets.mask)
    configure_logging(loaded.log_format, loaded.log_level)
    mask_logs(loaded.secrets)
    write_to_log(logging.getLogger("thresher") if loaded.log_format is LogFormat.JSON else None)
    for remark in remarks:
        logging.getLogger("thresher").warning(remark)
    log_places(loaded.settings)
    harvest = Harvest(
        loaded.settings,
        election=loaded.election,
        spark=loaded.spark,
        policy=loaded.policy,
        metrics_seconds=loaded.metrics_seconds,
        step_down_seconds=loaded.step_down_seconds,
    )

    pages = pages_shown(
        harvest, loaded.status, by_default=loaded.status_by_default, hosts=loaded.status_hosts, config=config
    )
    with stopped_by_signals(harvest), pages:
        harvest.start()
        harvest.wait()
    result(f"stopped; {counted(harvest.relayed, 'row', 'rows')} relayed")


def _local_stack() -> dict[str, Any]:
    if (endpoints := NamedStack().endpoints()) is None:
        return {}
    note("using the database and the broker of the local stack")
    return {"data_source": endpoints.dsn, "kafka": {"bootstrap.servers": endpoints.bootstrap}}
