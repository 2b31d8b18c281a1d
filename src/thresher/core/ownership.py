"""Whether another account of this machine could change a file: what we load or run must be out of its reach."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def changeable_by_others(path: Path) -> str | None:
    """Return who else could change or replace the file or directory, with the place that allows it; None if nobody.

    The path and all directories above it must be ours or root's, and writable for nobody else. In a directory with the
    sticky bit, such as /tmp, others can add entries but neither replace nor remove ours. Raises `OSError`.
    """
    for place, above in _places(path):
        status = place.stat()
        if status.st_uid not in {0, os.geteuid()}:
            return f"{place} belongs to user id {status.st_uid}"
        sticky = above and status.st_mode & stat.S_ISVTX
        if status.st_mode & _WRITABLE and not sticky:
            return f"{place} is writable for others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _places(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the directories above the path, as it is written and without symbolic links, and then the path itself."""
    written, real = path.absolute(), path.resolve(strict=True)
    for place in dict.fromkeys((*reversed(written.parents), *reversed(real.parents))):
        yield place, True
    yield real, False
