"""The target of an archive: a table beside the outbox, or a directory of Parquet files."""

import enum
from dataclasses import dataclass
from pathlib import Path

from thresher.core.errors import InvalidInput, shorten

# The name of the table in configurations and commands.
TABLE = "table"
# A hundred years: Postgres can subtract that from its time.
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
    """How a directory is opened."""

    # It must exist.
    EXISTING = "existing"
    # It is created if needed, unless another directory was used at this path before.
    MADE = "made"
    # It replaces the directory that was used at this path before.
    ANEW = "anew"


def target_of(text: str, *, base: Path | None = None) -> Target:
    """Return the target that a configuration or a command names. Without a base, a path must be absolute."""
    if text == TABLE:
        return TO_TABLE
    if not text or "\0" in text:
        raise InvalidInput(f"{shorten(text)} is not a path: give '{TABLE}' or a directory")
    path = Path(text)
    if not path.is_absolute():
        if base is None:
            raise InvalidInput(f"{shorten(text)} is not an absolute path: give '{TABLE}' or a directory from the root")
        path = base / path
    return ToDirectory(path)
