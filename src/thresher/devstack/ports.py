"""Free loopback ports that stay free.

Ports are drawn at random from below the kernel's range for outgoing connections. So no connection takes the port of a
server while it is restarted. A drawn port is claimed until our process ends, since its server may start much later. If
claims are not possible, two processes may draw the same port; the one that fails to bind draws again.
"""

import fcntl
import functools
import random
import socket
from collections.abc import Collection

from thresher.core.directories import PlaceUnusable, cache_home, make_writable
from thresher.devstack.cache import open_lock
from thresher.devstack.problem import PortTaken, StackProblem

HOST = "127.0.0.1"
_RANGE = (15000, 32000)
_DRAWS = 200
_random = random.SystemRandom()


def free_port(taken: Collection[int] = (), *, wanted: int | None = None, between: tuple[int, int] = _RANGE) -> int:
    """Return a port on which nobody listens, that no other process has drawn, and that is not in `taken`.

    The result is `wanted` if that is such a port. Other ports are drawn from the range `between`, ends included.
    """
    lowest, highest = between
    for draw in range(_DRAWS):
        port = wanted if wanted is not None and draw == 0 else _random.randint(lowest, highest)
        if port not in taken and is_free(port) and _claim(port):
            return port
    raise StackProblem(f"no free port between {lowest} and {highest} was found in {_DRAWS} draws: end other servers")


def _claim(port: int) -> bool:
    """Claim a port until this process ends; False if another one has it."""
    claims = _claims()
    if claims is None:
        return True
    try:
        # One byte of the file per port, all locked through one descriptor. A forked child does not inherit the locks.
        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@functools.cache
def _claims() -> int | None:
    """Open the file of claims, and keep it open: closing it would release all claims."""
    try:
        place = make_writable(cache_home(), "THRESHER_CACHE") / "ports.lock"
        return open_lock(place)
    except (OSError, PlaceUnusable):
        return None


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: they can bind a port in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def require_free(port: int, owner: str) -> int:
    """Return the requested port. Raises `PortTaken`, with the name of the server, if it is not free."""
    if not is_free(port):
        raise PortTaken(
            f"port {port} for {owner} is taken or not allowed: free it, or choose another (or none, to get a free one)"
        )
    return port
