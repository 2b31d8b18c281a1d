"""The directories of Thresher: a cache of downloads and built files, and the data of local stacks.

For root, both are outside its home directory: Postgres refuses to run as root, and its own account cannot enter there.
"""

import os
from pathlib import Path

from thresher.core.errors import ThresherError


class PlaceUnusable(ThresherError):  # noqa: N818
    """A directory cannot be used. The message names the environment variable that selects another one."""


def cache_home() -> Path:
    """Return the directory of downloads and built files: THRESHER_CACHE, or the system's usual directory."""
    if chosen := os.environ.get("THRESHER_CACHE"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/thresher")
    return Path(os.environ.get("XDG_CACHE_HOME") or _home("THRESHER_CACHE") / ".cache") / "thresher"


def state_home() -> Path:
    """Return the directory of stacks that outlive their command: THRESHER_STATE, or the system's usual directory."""
    if chosen := os.environ.get("THRESHER_STATE"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/thresher")
    return Path(os.environ.get("XDG_STATE_HOME") or _home("THRESHER_STATE") / ".local" / "state") / "thresher"


def _home(variable: str) -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise PlaceUnusable(f"this user has no home directory: set {variable} to a directory to use instead") from error


def make_writable(directory: Path, variable: str) -> Path:
    """Make the directory and return it. Raises `PlaceUnusable`, which names it and its environment variable."""
    try:
        for place in reversed((directory, *directory.parents)):
            if not place.exists():
                # Whatever the umask is: a group that may write could replace what we run.
                place.mkdir(mode=0o755, exist_ok=True)
                if os.geteuid() == 0:
                    # Independent of the umask, because the database's account has to enter it.
                    place.chmod(0o755)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable for this user")
    except OSError as error:
        raise PlaceUnusable(
            f"cannot use {directory}: {error.strerror or error}. Make it writable, or point {variable} elsewhere."
        ) from error
    return directory
