"""The producers of a relay's shards and locks, and what they are made with where somebody has given a function."""

from collections.abc import Callable, Mapping
from typing import Any

from thresher.db.shape import Shape
from thresher.kafka.transaction_timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.names import transactional_id
from thresher.relay.settings import Settings
from thresher.spark.worker.chain import resolve

# A lane whose last transaction does not end in this time is left for another.
_TIMEOUTS = TransactionTimeouts(blocked_seconds=5.0)
# Whether it has ended meanwhile is asked while all rows of the shard wait.
_BRIEF = TransactionTimeouts(blocked_seconds=1.0, init_seconds=2.0)
# A key that Deimos' own producer, ruby-kafka, has sent stays in its partition; rows without any are scattered.
_SHAPE_DEFAULTS: dict[Shape, dict[str, object]] = {Shape.DEIMOS: {"partitioner": "consistent_random"}}

# Of the client's properties.
MakeProducer = Callable[[dict[str, Any]], Any]


def producer_of(path: str | None) -> MakeProducer | None:
    """Import a producer's factory; None for the real one."""
    made: Any = None if path is None else resolve(path, arguments=1)
    return made  # type: ignore[no-any-return]


def lane_producer(
    settings: Settings, number: int, lane: int, more: Mapping[str, object], *, brief: bool = False
) -> TransactionalProducer:
    """Return the producer of a lane of a shard or a slot, not initialised; a `brief` one waits for nobody for long."""
    return TransactionalProducer(
        transactional_id(settings.name, number, lane),
        {**_SHAPE_DEFAULTS.get(settings.shape, {}), **settings.kafka, **settings.producer, **more},
        timeouts=_BRIEF if brief else _TIMEOUTS,
        make=producer_of(settings.producer_factory),
    )
