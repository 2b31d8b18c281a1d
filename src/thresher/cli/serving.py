"""Serves the status pages of a service over HTTP while its program runs."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from thresher.cli.status.running import listed
from thresher.core.errors import InvalidInput
from thresher.observe.server import Server
from thresher.service.pages import StatusPages
from thresher.service.service import Service

logger = logging.getLogger("thresher")


def log_places(settings: Any) -> None:
    """Log the database and the broker of a pipeline, given its keys or settings."""
    # Imported here: a tracker needs no database driver.
    from thresher.config.kafka_properties import brokers_of  # noqa: PLC0415
    from thresher.db.postgres.dsn import shown_databases  # noqa: PLC0415

    brokers = ", ".join(sorted(brokers_of(settings.kafka)))
    logger.info("database %s, brokers %s", shown_databases(settings.data_source), brokers, extra={"brokers": brokers})


@contextlib.contextmanager
def pages_shown(
    service: Service,
    at: tuple[str, int] | None,
    *,
    by_default: bool,
    hosts: Sequence[str] = (),
    config: Path | None = None,
) -> Iterator[None]:
    """Serve the pages at this address; None: not at all. With `by_default`, a free port is used if this one is in use.

    They answer under the name of the address and under the names in `hosts`.

    Meanwhile 'thresher status' finds the process, also by the file `config` that it was started with.
    """
    if at is None:
        yield
        return
    board = StatusPages(service)
    try:
        workload = service.workload
        with (
            _server(*at, board, hosts=(at[0], *hosts), by_default=by_default) as server,
            listed(kind=workload.wording.label, name=workload.name, host=at[0], port=server.port, config=config),
        ):
            yield
    finally:
        board.close()


def _server(host: str, port: int, board: StatusPages, *, hosts: Sequence[str], by_default: bool) -> Server:
    try:
        server = Server(host, port, board.pages, hosts=hosts)
    except OSError as error:
        if not by_default:
            raise InvalidInput(
                f"status: cannot listen on {host}:{port}: {error}; give another port, or leave it out, and a free one "
                "is taken"
            ) from error
        server = Server(host, 0, board.pages, hosts=hosts)
        logger.warning(
            "%s:%d is in use: this process answers to 'thresher status --at %s:%d'", host, port, host, server.port
        )
    logger.info(
        "status at http://%s:%d/status", host, server.port, extra={"pages": sorted(board.pages), "port": server.port}
    )
    return server
