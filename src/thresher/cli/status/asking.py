"""Asks a process how it stands, over loopback HTTP."""

import json
import urllib.error
import urllib.request
from typing import Any

from thresher.core.errors import InvalidInput, ThresherError


class RelayUnreachable(ThresherError):  # noqa: N818
    """Nobody answers there."""

    retryable = True


def ask(at: str) -> dict[str, Any]:
    """Return what the process at HOST:PORT says of itself."""
    host, _, port = at.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"--at {at}: HOST:PORT is needed")
    try:
        # To the process itself, whatever proxy the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{host}:{port}/status", timeout=15) as answer:
            picture: dict[str, Any] = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise RelayUnreachable(f"no relay or tracker answers at {at} ({error}): is one running?") from error
    return picture
