"""Free loopback ports that stay free.

Ports are drawn at random from below the range that the kernel gives to outgoing connections: a server that is killed
and started again finds its port as it left it. A port that was drawn is claimed among the processes that draw, until
ours ends: what will listen there may be started much later. Where claims are not possible two may draw the same one;
who fails to bind draws again.
"""

import fcntl
import functools
import os
import random
import socket
from collections.abc import Collection

from thresher.core.places import PlaceUnusable, cache_home, make_writable
from thresher.devstack.problem import PortTaken, StackProblem

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 15000, 32000
_DRAWS = 200
_random = random.SystemRandom()


def free_port(taken: Collection[int] = (), *, wanted: int | None = None) -> int:
    """Return a port that nobody listens on now, that no other process has drawn, and that is not among those taken.

    It is the one that is wanted, if that is such a port.
    """
    for draw in range(_DRAWS):
        port = wanted if wanted is not None and draw == 0 else _random.randint(_LOWEST, _HIGHEST)
        if port not in taken and is_free(port) and _claim(port):
            return port
    raise StackProblem(f"no free port found between {_LOWEST} and {_HIGHEST} in {_DRAWS} draws")


def _claim(port: int) -> bool:
    """Claim a port until this process ends; False if another one has it."""
    claims = _claims()
    if claims is None:
        return True
    try:
        # A byte for each port, all of them by one descriptor; a forked child has none of them.
        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@functools.cache
def _claims() -> int | None:
    """Open the file of claims, for good: closing it would give all of them up."""
    try:
        place = make_writable(cache_home(), "THRESHER_CACHE") / "ports.lock"
        return os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (OSError, PlaceUnusable):
        return None


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a port in TIME_WAIT is free to them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def require_free(port: int, owner: str) -> int:
    """Return the port that was asked for, or say who wanted it and that it is taken."""
    if not is_free(port):
        raise PortTaken(
            f"port {port} for {owner} is taken or not allowed: free it, or choose another (or none, to get a free one)"
        )
    return port
