"""Sends the markers after a Start, KeepAlives and Ends, through one producer for all queues of a service.

No caller waits for room in the producer's queue, which holds more markers than a service has messages in progress. Each
message has one settling marker, and at most one unanswered KeepAlive.
"""

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.problem import BrokerLost
from thresher.queue.metrics import Figures
from thresher.queue.problem import MarkerUnknown, QueueClosed
from thresher.queue.sending.shared_producer import SharedProducer
from thresher.queue.wire.marker import Marker, MessageId, encode

logger = logging.getLogger(__name__)

# How long the number of partitions is cached, since partitions may be added; and how long the query may take.
_KNOWN_SECONDS, _ANSWER_SECONDS = 10.0, 10.0
# The producer was replaced while it still held the record.
_PURGED = frozenset({KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})

Answered = Callable[[KafkaError | None], None]


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
        """Return the marker partition for a queue's next messages: the Java client's choice for the key."""
        now = self._monotonic()
        if self._known is None or now > self._known[1]:
            self._known = (self._producer.partitions(self._topic, _ANSWER_SECONDS), now + _KNOWN_SECONDS)
        return murmur2_partition(queue, self._known[0])

    def settle(self, queue: bytes, partition: int, marker: Marker, answered: Answered | None = None) -> None:
        """Queue a message's last marker, after all markers that are queued already.

        `answered` is called with the broker's answer. Raises `MarkerUnknown` if the marker cannot be queued.
        """
        settling = _Settling(self, queue, partition, marker.message_id, encode(marker), answered)
        try:
            self.queue(settling, again=False)
        except (BrokerLost, KafkaException) as error:
            why = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            self.unknown(marker.message_id, why)
            raise MarkerUnknown(
                f"the marker of message {marker.message_id} could not be sent: {why}; the message is redelivered"
            ) from error

    def queue(self, settling: "_Settling", *, again: bool) -> None:
        """Queue a message's last marker. With `again`, its client was replaced. Raises the producer's errors."""
        self._producer.produce(
            self._topic,
            settling.content,
            settling.queue,
            settling,
            partition=settling.partition,
            wait=False,
            again=again,
        )

    def keep_alive(self, queue: bytes, partition: int, marker: Marker, answered: Answered) -> None:
        """Queue a KeepAlive.

        `answered` is called with the broker's answer, or at once if the marker cannot be queued.
        """

        def report(error: KafkaError | None, _: Message | None) -> None:
            self._figures.count("keep_alives" if error is None else "keep_alives_unknown")
            answered(error)

        try:
            self._producer.produce(self._topic, encode(marker), queue, report, partition=partition, wait=False)
        except BrokerLost:
            report(KafkaError(KafkaError._QUEUE_FULL), None)
        except KafkaException as error:
            report(error.args[0], None)

    def unknown(self, message_id: MessageId, why: str) -> None:
        """Count and log a last marker that the broker did not confirm."""
        self._figures.count("markers_unknown")
        logger.warning("a marker was not confirmed", extra={"message_id": str(message_id), "reason": why})

    def confirmation(self) -> "Confirmed":
        """Return an object that waits for the broker's answer to one marker."""
        return Confirmed(self._confirm_seconds)

    def flush(self, seconds: float) -> bool:
        """Wait for the broker's answers to all markers. Return False on timeout."""
        return self._producer.flush(seconds)


class _Settling:
    """A message's last marker in flight. The client calls it with the broker's answer.

    One object per ack: nested functions would be nine objects for the garbage collector to visit.
    """

    __slots__ = ("_answered", "_markers", "_message_id", "content", "partition", "queue")

    def __init__(
        self,
        markers: Markers,
        queue: bytes,
        partition: int,
        message_id: MessageId,
        content: bytes,
        answered: Answered | None,
    ) -> None:
        self._markers, self._message_id, self._answered = markers, message_id, answered
        self.queue, self.partition, self.content = queue, partition, content

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            # No marker of this message follows, so it can be queued again after any others.
            if error.code() in _PURGED and self._queued_again():
                return
            self._markers.unknown(self._message_id, error.str())
        if self._answered is not None:
            self._answered(error)

    def _queued_again(self) -> bool:
        try:
            self._markers.queue(self, again=True)
        except (BrokerLost, QueueClosed, KafkaException) as fault:
            logger.warning("a marker was not queued again", extra={"reason": str(fault)})
            return False
        return True


class Confirmed:
    """The broker's answer to one marker, for the threads that wait for it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered = threading.Event()
        self._error: KafkaError | None = None

    def answer(self, error: KafkaError | None) -> None:
        """Set the answer."""
        self._error = error
        self._answered.set()

    def wait(self) -> None:
        """Wait for the answer. Raises `MarkerUnknown` if the broker did not confirm the marker."""
        if not self._answered.wait(self._seconds):
            raise MarkerUnknown(
                f"no answer from the broker in {self._seconds:g} s; if the marker was lost, the message is redelivered"
            )
        if self._error is not None:
            raise MarkerUnknown(f"{self._error.str()}; if the marker was lost, the message is redelivered")
