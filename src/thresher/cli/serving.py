"""Shows the pages of a service at an address, for as long as its program runs."""

import contextlib
import logging
from collections.abc import Iterator

from thresher.core.errors import InvalidInput
from thresher.observe.server import Server
from thresher.service.pages import StatusPages
from thresher.service.service import Service

logger = logging.getLogger("thresher")


@contextlib.contextmanager
def pages_shown(service: Service, at: tuple[str, int] | None, *, by_default: bool) -> Iterator[None]:
    """Show the pages there; None for nowhere. `by_default`: nobody chose the port, and another one will do."""
    if at is None:
        yield
        return
    board = StatusPages(service)
    try:
        with _server(*at, board, by_default=by_default):
            yield
    finally:
        board.close()


def _server(host: str, port: int, board: StatusPages, *, by_default: bool) -> Server:
    try:
        server = Server(host, port, board.pages)
    except OSError as error:
        if not by_default:
            raise InvalidInput(f"status: {host}:{port} cannot be listened on: {error}") from error
        server = Server(host, 0, board.pages)
        logger.warning("%s:%d is taken: ask with 'thresher status --at %s:%d'", host, port, host, server.port)
    logger.info(
        "status at http://%s:%d/status", host, server.port, extra={"pages": sorted(board.pages), "port": server.port}
    )
    return server
