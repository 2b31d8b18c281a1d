"""Free loopback ports that stay free.

Ports are drawn at random from below the range that the kernel gives to outgoing connections: a server that is killed
and started again finds its port as it left it. Two stacks may still draw the same one; who fails to bind draws again.
"""

import random
import socket
from collections.abc import Collection

from thresher.devstack.problem import PortTaken, StackProblem

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 15000, 32000
_DRAWS = 200
_random = random.SystemRandom()


def free_port(taken: Collection[int] = ()) -> int:
    """Return a port that nobody listens on now and that is not among those taken."""
    for _ in range(_DRAWS):
        port = _random.randint(_LOWEST, _HIGHEST)
        if port not in taken and is_free(port):
            return port
    raise StackProblem(f"no free port found between {_LOWEST} and {_HIGHEST} in {_DRAWS} draws")


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
