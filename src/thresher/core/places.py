"""Where things are kept: a cache of what was fetched or made once, and the data of stacks that were left running.

Root keeps both outside its home, because Postgres refuses to run as root and its own account cannot enter there.
"""

import os
from pathlib import Path

from thresher.core.errors import ThresherError


class PlaceUnusable(ThresherError):  # noqa: N818
    """A directory cannot be used; the message names the variable that moves it."""


def cache_home() -> Path:
    """Return the directory of what is fetched or made once: THRESHER_CACHE, or the system's usual place."""
    if chosen := os.environ.get("THRESHER_CACHE"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/thresher")
    return Path(os.environ.get("XDG_CACHE_HOME") or _home("THRESHER_CACHE") / ".cache") / "thresher"


def state_home() -> Path:
    """Return the directory of stacks that outlive the command that made them."""
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
    """Make the directory, or raise a problem that names it and the variable that moves it."""
    try:
        for place in reversed((directory, *directory.parents)):
            if not place.exists():
                place.mkdir(exist_ok=True)
                if os.geteuid() == 0:
                    # Whatever the umask: the database's account passes through.
                    place.chmod(0o755)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable for this user")
    except OSError as error:
        raise PlaceUnusable(
            f"cannot use {directory}: {error.strerror or error}. Make it writable, or point {variable} elsewhere."
        ) from error
    return directory
