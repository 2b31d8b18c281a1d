"""`thresher queue track`: runs the redelivery tracker, configured by a file, the environment and flags."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.output import counted, hide, result, write_to_log
from thresher.cli.queue.loading import ConfigFile
from thresher.cli.stack.choosing import StackName, with_broker
from thresher.core.secrets import mask_logs
from thresher.observe.logs import LogFormat, configure_logging

if TYPE_CHECKING:
    from thresher.tracker.configuration import TrackerForm


def form() -> "type[TrackerForm]":
    """Return the form whose flags the command has."""
    from thresher.tracker.configuration import TrackerForm  # noqa: PLC0415

    return TrackerForm


def track(
    config: ConfigFile = None,
    stack: StackName = None,
    *,
    flags: Mapping[str, Any],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more: the same as --log-level debug.")] = False,
) -> None:
    """Redeliver messages that were started and not acked in time, until SIGINT or SIGTERM.

    The file is the one of the queues' clients; the tracker's own keys are in its section redelivery-tracker. Several
    trackers may run for one pair of topics: one leads, the others stand by. The first signal finishes open
    transactions, the second does not wait. Exit codes: 0 stopped as asked, 1 failed: may be restarted, 2 invalid
    configuration, 3 superseded by a newer tracker (without an election: do not restart), 4 a person has to act: a
    topic's settings, permissions, markers that are gone, or memory.
    """
    # Imported here: the other commands work without the tracker's packages.
    from thresher.cli.serving import pages_shown  # noqa: PLC0415
    from thresher.spark.driver.signals import stopped_by_signals  # noqa: PLC0415
    from thresher.tracker.configuration import load_tracker_config  # noqa: PLC0415
    from thresher.tracker.tracker import Tracker  # noqa: PLC0415

    given = with_broker(flags, stack)
    overrides = {**given, "log_level": "debug"} if verbose else given
    remarks: list[str] = []
    loaded = load_tracker_config(config, overrides, os.environ, warn=remarks.append)
    completed, keys = loaded.completed, loaded.form
    hide(completed.secrets.mask)
    configure_logging(keys.log_format, keys.log_level)
    mask_logs(completed.secrets)
    write_to_log(logging.getLogger("thresher") if keys.log_format is LogFormat.JSON else None)
    for remark in remarks:
        logging.getLogger("thresher").warning(remark)
    tracker = Tracker(loaded)
    by_default = "status" not in completed.given
    pages = pages_shown(tracker, keys.status_address, by_default=by_default, hosts=keys.status_hosts, config=config)
    with stopped_by_signals(tracker), pages:
        tracker.start()
        tracker.wait()
    result(f"stopped; {counted(tracker.redelivered, 'message', 'messages')} redelivered")
