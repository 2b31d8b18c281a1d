"""Flushing to the disk: what the archive relies on after a power failure goes through here, and nowhere else."""

import os
from pathlib import Path
from typing import IO, Any


def flush_file(file: IO[Any]) -> None:
    """Flush the content of an open file. Its name is durable only after `flush_path` of its directory."""
    file.flush()
    os.fsync(file.fileno())


def flush_path(path: Path) -> None:
    """Flush a file's content, or the names in a directory, whoever has written them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_parent(path: Path) -> None:
    """Flush the name of a directory in the one above it. Where this user may not read that one, flush everything."""
    try:
        flush_path(path.parent)
    except PermissionError:
        os.sync()
