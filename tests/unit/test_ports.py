import socket
import subprocess
import sys

import pytest

from thresher.devstack import ports
from thresher.devstack.problem import StackProblem

DRAW = "from thresher.devstack import ports; print(ports.free_port(between=({port}, {port})))"


def drawn_elsewhere(port: int) -> subprocess.CompletedProcess[str]:
    """Let another process draw from this port alone."""
    return subprocess.run(
        [sys.executable, "-c", DRAW.format(port=port)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_drawn_port_is_reserved_before_anyone_listens() -> None:
    port = ports.free_port()
    refused = drawn_elsewhere(port)
    assert refused.returncode == 1
    assert "no free port between" in refused.stderr
    assert ports.is_free(port)


def test_a_drawn_port_is_free_after_its_process_ended() -> None:
    port = next(port for port in range(31_000, 32_000) if drawn_elsewhere(port).returncode == 0)
    assert ports.free_port(between=(port, port)) == port
    with pytest.raises(StackProblem):
        ports.free_port(taken={port}, between=(port, port))


def test_a_preferred_free_port_is_used() -> None:
    port = ports.free_port()
    assert ports.free_port(wanted=port) == port


def test_a_preferred_port_in_use_is_replaced() -> None:
    with socket.create_server((ports.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert ports.free_port(wanted=port) != port
    assert ports.free_port([port], wanted=port) != port
