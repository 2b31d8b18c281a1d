"""Where an archive is kept: a table beside the outbox, or a directory of Parquet files."""

import enum
from dataclasses import dataclass
from pathlib import Path

from thresher.core.errors import InvalidInput, shorten

# How the table is named in configurations and commands.
TABLE = "table"
# A hundred years: what a database can subtract from its time.
MOST_SECONDS = 100 * 365.25 * 86_400


class _Table(enum.Enum):
    BESIDE = TABLE


TO_TABLE = _Table.BESIDE


@dataclass(frozen=True, slots=True)
class ToDirectory:
    """A directory, by an absolute path."""

    path: Path


Target = _Table | ToDirectory


class Opening(enum.Enum):
    """How a directory is come by: it has to be there; or it is made, unless rows were archived to that path before; or
    it takes the place of another, which was there before."""

    EXISTING = "existing"
    MADE = "made"
    ANEW = "anew"


def target_of(text: str, *, base: Path | None = None) -> Target:
    """Return what a configuration or a command names; without a base, a path has to be absolute."""
    if text == TABLE:
        return TO_TABLE
    if not text or "\0" in text:
        raise InvalidInput(f"{shorten(text)} names no place: give '{TABLE}' or a directory")
    path = Path(text)
    if not path.is_absolute():
        if base is None:
            raise InvalidInput(f"{shorten(text)} is no absolute path: give '{TABLE}' or a directory from the root")
        path = base / path
    return ToDirectory(path)
