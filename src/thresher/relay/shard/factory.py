"""What a relay's clients are made with, where somebody has given a function of their own by its import path."""

from collections.abc import Callable
from typing import Any

from thresher.db.postgres.sessions import connect
from thresher.db.postgres.store import Connect
from thresher.spark.worker.chain import resolve

# Of the client's properties.
MakeProducer = Callable[[dict[str, Any]], Any]


def producer_of(path: str | None) -> MakeProducer | None:
    """Import a producer's factory; None for the real one."""
    made: Any = None if path is None else resolve(path, arguments=1)
    return made  # type: ignore[no-any-return]


def connector_of(path: str | None) -> Connect:
    """Import what connects; by default the relay's own."""
    made: Any = connect if path is None else resolve(path, arguments=2)
    return made  # type: ignore[no-any-return]
