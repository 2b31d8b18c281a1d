"""Makes the producers of a relay's shards and locks from its settings."""

from collections.abc import Mapping

from thresher.db.shape import Shape
from thresher.delivery.shard import producer_factory
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.settings import Settings

# The partitioner that matches ruby-kafka, Deimos' own producer, so that keys keep their partitions.
_SHAPE_DEFAULTS: dict[Shape, dict[str, object]] = {Shape.DEIMOS: {"partitioner": "consistent_random"}}


def make_producer(
    settings: Settings, number: int, id_index: int, more: Mapping[str, object], *, brief: bool = False
) -> TransactionalProducer:
    """Return the producer of an id of a shard or a slot, not initialised. A `brief` one has short time-outs."""
    properties = {**_SHAPE_DEFAULTS.get(settings.shape, {}), **settings.kafka, **settings.producer, **more}
    return producer_factory.make_producer(
        settings.name, number, id_index, properties, factory=settings.producer_factory, brief=brief
    )
