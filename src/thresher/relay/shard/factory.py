"""What a relay's producers are made with, where somebody has given a function of their own by its import path."""

from collections.abc import Callable
from typing import Any

from thresher.spark.worker.chain import resolve

# Of the client's properties.
MakeProducer = Callable[[dict[str, Any]], Any]


def producer_of(path: str | None) -> MakeProducer | None:
    """Import a producer's factory; None for the real one."""
    made: Any = None if path is None else resolve(path, arguments=1)
    return made  # type: ignore[no-any-return]
