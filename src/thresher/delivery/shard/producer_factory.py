"""Makes the producer of one of a shard's transactional ids, with the user's factory if one is configured."""

from collections.abc import Callable, Mapping
from typing import Any

from thresher.delivery.names import transactional_id
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer
from thresher.spark.worker.chain import resolve

# If the last transaction of an id does not end in this time, the shard moves to another id.
_TIMEOUTS = TransactionTimeouts(blocked_seconds=5.0)
# For the question whether the transaction of a blocked id has ended: all rows of the shard wait for the answer.
_BRIEF = TransactionTimeouts(blocked_seconds=1.0, init_seconds=2.0)

# Makes a client from its properties.
MakeClient = Callable[[dict[str, Any]], Any]


def producer_of(path: str | None) -> MakeClient | None:
    """Import the function that makes clients; None for Kafka's own client."""
    made: Any = None if path is None else resolve(path, arguments=1)
    return made  # type: ignore[no-any-return]


def make_producer(
    name: str,
    number: int,
    id_index: int,
    properties: Mapping[str, object],
    *,
    factory: str | None = None,
    brief: bool = False,
) -> TransactionalProducer:
    """Return the producer of an id of a shard or a slot, not initialised. A `brief` one has short time-outs.

    `name` is the prefix of the pipeline's transactional ids; `factory` is the import path of a function.
    """
    return TransactionalProducer(
        transactional_id(name, number, id_index),
        dict(properties),
        timeouts=_BRIEF if brief else _TIMEOUTS,
        make=producer_of(factory),
    )
