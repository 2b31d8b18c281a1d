"""Chooses the outbox of a command: by its flags, and for the rest by the file of the outbox's relay or tail."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli.options import is_flag, named_dsn, require_no_flag, resolve_dsn, table_name
from thresher.cli.output import hide
from thresher.cli.stack.choosing import with_stack
from thresher.core.secrets import SecretText
from thresher.db import TableName
from thresher.outbox import Shape

_CONFIG = "THRESHER_CONFIG"
_OUTBOX = "outbox"

OutboxFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar=_CONFIG, metavar="FILE", help="YAML file of the outbox's relay or tail."),
]
# Like those in `options`, but without a default: the file may name outbox and shape.
AnOutbox = Annotated[
    str | None,
    typer.Option(
        "--outbox", envvar="THRESHER_OUTBOX", help="Name of the outbox table; by default the file's, or outbox."
    ),
]
AShape = Annotated[
    Shape | None,
    typer.Option(
        "--shape",
        envvar="THRESHER_SHAPE",
        help="Layout of the table: our own, goharvest's or Deimos'; by default the file's, or our own.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenOutbox:
    """An outbox and its database. With `in_log`, its messages are in no table: a tail reads them through the slot."""

    dsn: SecretText
    table: TableName
    shape: Shape
    in_log: bool = False
    slot: str | None = None
    # With a file: the client's properties, and the progress topic of the pipeline.
    kafka: Mapping[str, Any] | None = field(default=None, repr=False)
    progress: str = ""


def chosen_outbox(
    config: Path | None, ds: str | None, stack: str | None, outbox: str | None, schema: str | None, shape: Shape | None
) -> ChosenOutbox:
    """Return the outbox that the flags and the file name. Raises `InvalidInput`.

    A flag overrides the file. A file that only the environment names is ignored if a flag names a database or a stack.
    An environment whose database is not the file's is refused.
    """
    if config is not None and (stack or is_flag(ds)) and str(config) == os.environ.get(_CONFIG):
        config = None
    if config is None:
        table = table_name(outbox or _OUTBOX, schema)
        return ChosenOutbox(dsn=resolve_dsn(ds, stack), table=table, shape=shape or Shape.THRESHER)
    found = _of_file(config, ds, stack)
    return ChosenOutbox(
        dsn=found.dsn if stack else named_dsn(ds) or found.dsn,
        table=table_name(outbox or found.table.table, schema or found.table.schema),
        shape=shape or found.shape,
        in_log=found.in_log,
        slot=found.slot,
        kafka=found.kafka,
        progress=found.progress,
    )


def _of_file(path: Path, ds: str | None, stack: str | None) -> ChosenOutbox:
    # Imported here: without a file, the packages for reading one are not needed.
    from thresher.config.problem import ConfigurationInvalid  # noqa: PLC0415

    if stack is not None:
        require_no_flag(ds)
    flags = with_stack({"data_source": None if stack else ds}, stack)
    try:
        return _of_relay(path, flags)
    except ConfigurationInvalid as no_relay:
        try:
            return _of_tail(path, flags)
        except ConfigurationInvalid as no_tail:
            # A file does not say whether it is a relay's or a tail's: report the problems of the form that fits better.
            raise min(no_relay, no_tail, key=lambda each: len(each.problems)) from None


def _of_relay(path: Path, flags: Mapping[str, Any]) -> ChosenOutbox:
    from thresher.delivery.names import progress_topic  # noqa: PLC0415
    from thresher.harvest.configuration import load  # noqa: PLC0415

    loaded = load(path, flags, os.environ, warn=_ignore)
    hide(loaded.secrets.mask)
    settings = loaded.settings
    return ChosenOutbox(
        dsn=settings.data_source,
        table=settings.outbox,
        shape=settings.shape,
        kafka=settings.kafka,
        progress=progress_topic(settings.name),
    )


def _of_tail(path: Path, flags: Mapping[str, Any]) -> ChosenOutbox:
    from thresher.tail.configuration import load_tail_config  # noqa: PLC0415
    from thresher.tail.settings import Via  # noqa: PLC0415

    loaded = load_tail_config(path, flags, os.environ, warn=_ignore)
    hide(loaded.completed.secrets.mask)
    settings = loaded.settings
    in_log = settings.via is Via.LOG
    return ChosenOutbox(
        dsn=settings.dsn,
        table=settings.outbox,
        shape=settings.shape,
        in_log=in_log,
        slot=settings.slot,
        kafka=settings.kafka,
        progress=settings.progress.topic,
    )


def _ignore(_: str) -> None:
    """Drop a remark on a key without effect: the relay and the tail report it."""
