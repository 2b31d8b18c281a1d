"""The producers of shards, lane by lane, and what they are made with where somebody has given a function."""

from collections.abc import Callable, Mapping
from typing import Any

from thresher.delivery.names import transactional_id
from thresher.kafka.transaction_timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer
from thresher.spark.worker.chain import resolve

# A lane whose last transaction does not end in this time is left for another.
_TIMEOUTS = TransactionTimeouts(blocked_seconds=5.0)
# Whether it has ended meanwhile is asked while all rows of the shard wait.
_BRIEF = TransactionTimeouts(blocked_seconds=1.0, init_seconds=2.0)

# Of the client's properties.
MakeProducer = Callable[[dict[str, Any]], Any]


def producer_of(path: str | None) -> MakeProducer | None:
    """Import a producer's factory; None for the real one."""
    made: Any = None if path is None else resolve(path, arguments=1)
    return made  # type: ignore[no-any-return]


def lane_producer(
    name: str,
    number: int,
    lane: int,
    properties: Mapping[str, object],
    *,
    factory: str | None = None,
    brief: bool = False,
) -> TransactionalProducer:
    """Return the producer of a lane of a shard or a slot, not initialised; a `brief` one waits for nobody for long.

    `name` is what the transactional ids of a pipeline begin with; `factory` is a function by import path.
    """
    return TransactionalProducer(
        transactional_id(name, number, lane),
        dict(properties),
        timeouts=_BRIEF if brief else _TIMEOUTS,
        make=producer_of(factory),
    )
