"""A producer that fails at random: it refuses a record, or reports a delivered record as failed."""

import os
import random
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

SHARE = 0.02


class FaultyProducer(Producer):
    """Refuses one record in fifty, and reports one delivered record in fifty as timed out."""

    def __init__(self, config: dict[str, Any], draw: random.Random) -> None:
        tell: Callable[[KafkaError | None, Message], None] = config["on_delivery"]

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None and draw.random() < SHARE:
                error = KafkaError(KafkaError._MSG_TIMED_OUT)
            tell(error, message)

        # Successful deliveries are reported too, so that some of them can be falsified.
        super().__init__({**config, "on_delivery": on_delivery, "delivery.report.only.error": False})
        self._draw = draw

    def produce(self, *record: Any, **named: Any) -> None:
        if self._draw.random() < SHARE:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        super().produce(*record, **named)


def faulty(config: dict[str, Any]) -> FaultyProducer:
    """Return a producer whose faults depend on its transactional id and its process id."""
    return FaultyProducer(config, random.Random(f"{config['transactional.id']}/{os.getpid()}"))
