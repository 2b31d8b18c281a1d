"""Sends the markers that follow a Start: KeepAlives and Ends, by one producer for all queues of a service."""

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.problem import BrokerLost
from thresher.queue.metrics import Figures
from thresher.queue.problem import MarkerUnknown
from thresher.queue.shared_producer import SharedProducer
from thresher.queue.wire.marker import Marker, encode

logger = logging.getLogger(__name__)

# Partitions may be added: how long their number is taken for known, and how long an answer may take.
_KNOWN_SECONDS, _ANSWER_SECONDS = 10.0, 10.0


class Markers:
    """The markers of one service. Safe from any thread."""

    def __init__(
        self,
        producer: SharedProducer,
        topic: str,
        figures: Figures,
        *,
        confirm_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer, self._topic, self._figures = producer, topic, figures
        self._confirm_seconds = confirm_seconds
        self._monotonic = monotonic
        self._known: tuple[int, float] | None = None

    def partition(self, queue: bytes) -> int:
        """Return the partition for the markers of a queue's next messages: the Java client's choice for the key."""
        now = self._monotonic()
        if self._known is None or now > self._known[1]:
            self._known = (self._producer.partitions(self._topic, _ANSWER_SECONDS), now + _KNOWN_SECONDS)
        return murmur2_partition(queue, self._known[0])

    def send(self, queue: bytes, partition: int, marker: Marker) -> Callable[[], None]:
        """Queue a marker behind those that were queued before it; return how to wait for the broker's answer.

        The waiting raises `MarkerUnknown`.
        """
        done = threading.Event()
        failed: list[str] = []

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error.str())
                self._figures.count("markers_unknown")
                logger.warning(
                    "a marker was not confirmed", extra={"message_id": str(marker.message_id), "reason": error.str()}
                )
            done.set()

        def wait() -> None:
            if not done.wait(self._confirm_seconds):
                failed.append(f"no answer in {self._confirm_seconds:g} s")
            if failed:
                raise MarkerUnknown(
                    f"the {marker.type.name} of message {marker.message_id} was not confirmed: {failed[0]}; if it was "
                    "lost, the message is redelivered"
                )

        try:
            self._producer.produce(self._topic, encode(marker), queue, report, partition=partition)
        except BrokerLost as error:
            raise MarkerUnknown(f"the {marker.type.name} of message {marker.message_id}: {error}") from error
        except KafkaException as error:
            raise MarkerUnknown(
                f"the {marker.type.name} of message {marker.message_id}: {error.args[0].str()}"
            ) from error
        return wait

    def flush(self, seconds: float) -> bool:
        """Wait for the broker's answers, and return whether all came."""
        return self._producer.flush(seconds)
