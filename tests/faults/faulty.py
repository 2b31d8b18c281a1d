"""A producer that fails now and then: before a record is sent, or after it was, in what it says of it."""

import os
import random
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

SHARE = 0.02


class FaultyProducer(Producer):
    """Does not take every fiftieth record, and says of every fiftieth that was delivered that it was not."""

    def __init__(self, config: dict[str, Any], draw: random.Random) -> None:
        tell: Callable[[KafkaError | None, Message], None] = config["on_delivery"]

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None and draw.random() < SHARE:
                error = KafkaError(KafkaError._MSG_TIMED_OUT)
            tell(error, message)

        # Deliveries that went well are told of too, or there would be nothing to lie about.
        super().__init__({**config, "on_delivery": on_delivery, "delivery.report.only.error": False})
        self._draw = draw

    def produce(self, *record: Any, **named: Any) -> None:
        if self._draw.random() < SHARE:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        super().produce(*record, **named)


def faulty(config: dict[str, Any]) -> FaultyProducer:
    """Return a producer whose faults are other ones in each process, and the same in each run."""
    return FaultyProducer(config, random.Random(f"{config['transactional.id']}/{os.getpid()}"))
