"""Makes the producers of a relay's shards and locks from its settings."""

from collections.abc import Mapping

from thresher.db.shape import Shape
from thresher.delivery.shard import lane_producer as lanes
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.settings import Settings

# The partitioner that matches ruby-kafka, Deimos' own producer, so that keys keep their partitions.
_SHAPE_DEFAULTS: dict[Shape, dict[str, object]] = {Shape.DEIMOS: {"partitioner": "consistent_random"}}


def lane_producer(
    settings: Settings, number: int, lane: int, more: Mapping[str, object], *, brief: bool = False
) -> TransactionalProducer:
    """Return the producer of a lane of a shard or a slot, not initialised. A `brief` one has short time-outs."""
    properties = {**_SHAPE_DEFAULTS.get(settings.shape, {}), **settings.kafka, **settings.producer, **more}
    return lanes.lane_producer(settings.name, number, lane, properties, factory=settings.producer_factory, brief=brief)
