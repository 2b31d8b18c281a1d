"""Asks a process for its status, over HTTP."""

import json
from typing import Any

from thresher.core.errors import InvalidInput, ThresherError

# The status of an answer to a request under an unknown name.
MISDIRECTED = 421


class RelayUnreachable(ThresherError):  # noqa: N818
    """No process answers at the address."""

    retryable = True


def ask(at: str) -> dict[str, Any]:
    """Return the status of the process at HOST:PORT."""
    import urllib.request  # noqa: PLC0415 - other commands start without an HTTP client

    host, _, port = at.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"--at {at}: HOST:PORT is needed")
    try:
        # Directly to the process, even if the environment names a proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{host}:{port}/status", timeout=15) as answer:
            picture: dict[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise RelayUnreachable(_why(at, error)) from error
    return picture


def _why(at: str, error: Exception) -> str:
    if getattr(error, "code", None) == MISDIRECTED:
        return (
            f"the process at {at} does not answer under this name: use its address, or add the name to its status_hosts"
        )
    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError):
        return (
            f"nothing runs at {at}: start a relay, tail, tracker or capture, or name the one that runs by -c FILE or "
            "--at HOST:PORT"
        )
    if isinstance(reason, TimeoutError):
        return f"{at} does not answer: its process hangs, or a firewall blocks the request"
    if isinstance(reason, OSError):
        return f"{at} cannot be reached: {reason.strerror or reason}"
    return f"the process at {at} is no relay, tail, tracker or capture: check --at"
