"""Flushing to disk. All that the archive needs after a power failure is flushed by these functions."""

import os
from pathlib import Path
from typing import IO, Any


def flush_file(file: IO[Any]) -> None:
    """Flush the content of an open file. Its name is durable only after `flush_path` of its directory."""
    file.flush()
    os.fsync(file.fileno())


def flush_path(path: Path) -> None:
    """Flush a file's content, or a directory's entries, whichever process has written them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_parent(path: Path) -> None:
    """Flush the parent of a directory, so that its name is durable. If the parent is not readable, flush everything."""
    try:
        flush_path(path.parent)
    except PermissionError:
        os.sync()
