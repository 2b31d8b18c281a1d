"""`thresher status`: the state of a running relay, tail, tracker or capture."""

from thresher.cli.status.asking import RelayUnreachable, ask
from thresher.cli.status.command import status

__all__ = ["RelayUnreachable", "ask", "status"]
