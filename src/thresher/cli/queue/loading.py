"""Reads the configuration and the queue ids that every command of queues needs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.output import hide
from thresher.core.errors import InvalidInput
from thresher.core.printable import printable
from thresher.core.secrets import mask_logs
from thresher.observe.logs import configure_logging

if TYPE_CHECKING:
    from thresher.queue import QueueConfig

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="THRESHER_CONFIG", help="YAML file. Environment variables and flags override it."
    ),
]
QueueId = Annotated[str, typer.Argument(metavar="QUEUE", help="Id of the queue.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line and message.")]


def form() -> "type[QueueConfig]":
    """Return the form whose flags the commands have."""
    from thresher.queue.configuration import QueueConfig  # noqa: PLC0415

    return QueueConfig


def load_config(config: Path | None, flags: Mapping[str, Any], problems: Sequence[str] = ()) -> "QueueConfig":
    """Return the configuration. Raises one error with its problems and those of the arguments."""
    from thresher.config.problem import ConfigurationInvalid  # noqa: PLC0415
    from thresher.queue.configuration import load_queue_config  # noqa: PLC0415

    try:
        completed = load_queue_config(config, flags, os.environ)
    except ConfigurationInvalid as error:
        raise ConfigurationInvalid("\n  ".join([str(error), *problems])) from None
    if problems:
        raise InvalidInput("\n  ".join(problems))
    hide(completed.secrets.mask)
    configure_logging(level="warning")
    mask_logs(completed.secrets)
    return completed.form


def given_queue_id(given: str, problems: list[str]) -> bytes:
    """Return the id of a queue from the command line. If it is invalid, add to `problems` and return nothing."""
    from thresher.queue.queue import queue_id  # noqa: PLC0415

    try:
        # The bytes of the command line, whatever its encoding.
        return queue_id(os.fsencode(given))
    except InvalidInput as error:
        problems.append(f"QUEUE: {error}")
        return b""


def text_of(content: bytes) -> str:
    """Return bytes as text for people."""
    return printable(content.decode("utf-8", "backslashreplace"))
