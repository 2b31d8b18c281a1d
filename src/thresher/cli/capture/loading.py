"""The configuration of the commands of a capture, and their connection to its database."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.output import hide
from thresher.cli.stack.choosing import with_stack
from thresher.core.secrets import mask_logs
from thresher.observe.logs import configure_logging

if TYPE_CHECKING:
    from psycopg import Connection

    from thresher.capture.configuration import CaptureConfiguration
    from thresher.capture.settings import CaptureSettings

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="THRESHER_CONFIG", help="YAML file. Environment variables and flags override it."
    ),
]


def load_config(config: Path | None, flags: Mapping[str, Any], remarks: list[str]) -> "CaptureConfiguration":
    """Return the configuration, and add what people should know about it to `remarks`. Its secrets are not printed."""
    from thresher.capture.configuration import load_capture_config  # noqa: PLC0415
    from thresher.config.function_paths import search_beside  # noqa: PLC0415

    loaded = load_capture_config(config, flags, os.environ, warn=remarks.append)
    remarks += search_beside(config, loaded.settings.functions)
    hide(loaded.completed.secrets.mask)
    return loaded


def settings_of(config: Path | None, stack: str | None) -> "CaptureSettings":
    """Return the settings for a command beside a capture, which logs little."""
    loaded = load_config(config, with_stack({}, stack), [])
    configure_logging(level="warning")
    mask_logs(loaded.completed.secrets)
    return loaded.settings


@contextmanager
def prepared(settings: "CaptureSettings") -> Iterator["tuple[Connection[Any], CaptureSettings]"]:
    """Connect for one transaction that finds nothing that others have planted; yield it and the tables' schemas."""
    from thresher.capture.settings import settings_placed_by  # noqa: PLC0415
    from thresher.cli.options import connect  # noqa: PLC0415
    from thresher.db.postgres.sessions import keep_to_own_path  # noqa: PLC0415

    with connect(settings.dsn) as connection:
        found = settings_placed_by(connection, settings)
        keep_to_own_path(connection)
        yield connection, found


def named(settings: "CaptureSettings") -> "CaptureSettings":
    """Tell people which database a command changes that connects by itself."""
    from thresher.cli.options import name_database  # noqa: PLC0415

    name_database(settings.dsn)
    return settings
