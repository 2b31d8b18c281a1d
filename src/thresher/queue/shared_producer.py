"""One idempotent producer for all queues of a service, with a thread that serves its delivery reports.

Every record has a report: the broker has it, refuses it, or did not answer in time. After a fatal error of the client
the producer is replaced; the records that it still had are reported as unanswered. So it is after a record that timed
out: the client would begin a new epoch and send what was in flight again, also what the broker has already.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.queue.problem import QueueClosed, TopicsUnsuitable

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
# How long a caller waits for room in the client's queue.
_ROOM_SECONDS, _FULL_SECONDS = 30.0, 0.005
# Codes that say for certain that the broker does not have the record.
_REFUSALS = frozenset(
    {Refusal.ROW, Refusal.SIZE, Refusal.TIME, Refusal.TOPIC, Refusal.TOPIC_DENIED, Refusal.CLIENT}
)  # fmt: skip

Report = Callable[[KafkaError | None, Message], None]


def is_refusal(error: KafkaError) -> bool:
    """Return whether the broker, or the client before it, refused a record. Otherwise its fate is unknown."""
    return refusal_of(error) in _REFUSALS


class SharedProducer:
    """A producer for any thread."""

    def __init__(self, name: str, make: Callable[[], Producer]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._producer, self._made_at = make(), time.monotonic()
        self.closed = self._ended = False
        # Clients that were replaced, whose records are still to be reported; and how long a close may take that a
        # report asked for. Both are left to the thread: within a report, no call of the client's may serve others.
        self._replaced: deque[Producer] = deque()
        self._closing: float | None = None
        self._thread = threading.Thread(target=self._serve, name=f"thresher-queue-{name}", daemon=True)
        self._thread.start()

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes,
        report: Report,
        *,
        partition: int = -1,
        headers: list[tuple[str, Any]] | None = None,
        wait: bool = True,
    ) -> None:
        """Queue a record. `report` is called once, by the thread. Raises `KafkaException` where the client refuses.

        A full queue is waited for; then, or at once without `wait`, it raises `BrokerLost`.
        """
        deadline: float | None = None
        while True:
            if self.closed:
                raise QueueClosed("the service was closed")
            producer = self._producer
            try:
                producer.produce(topic, value, key, partition, report, None, 0, headers)
            except BufferError:
                # The thread makes room.
                deadline = deadline or time.monotonic() + (_ROOM_SECONDS if wait else 0.0)
                if time.monotonic() >= deadline:
                    raise BrokerLost(
                        f"the {self._name} producer's queue is full: the broker takes no records"
                    ) from None
                time.sleep(_FULL_SECONDS)
            except KafkaException as error:
                if not error.args[0].fatal() and error.args[0].code() != KafkaError._FATAL:
                    raise
                self._replace(producer, error.args[0].str())
            else:
                if self._ended:
                    # It was closed meanwhile, and nobody else reports any more.
                    _give_up(producer)
                return

    def flush(self, seconds: float) -> bool:
        """Wait until every record was reported, and return whether that is so."""
        return bool(self._producer.flush(seconds) == 0)

    def close(self, seconds: float) -> None:
        """Send what is queued, and end. Records that are left after so many seconds are reported as unanswered."""
        self.closed = True
        if threading.current_thread() is self._thread:
            self._closing = seconds
            return
        self._finish(seconds)
        self._thread.join()
        self._give_up_replaced()

    def distrust(self, queued_at: float) -> None:
        """Replace the client that a record was queued with at this time, because the record timed out."""
        if self._made_at <= queued_at:
            self._replace(self._producer, "a record timed out")

    def partitions(self, topic: str, seconds: float) -> int:
        """Return a topic's number of partitions. Raises `TopicsUnsuitable` where there is none, or `BrokerLost`."""
        try:
            found = self._producer.list_topics(topic, timeout=seconds).topics[topic]
        except KafkaException as error:
            raise BrokerLost(f"the broker did not say how {topic} stands: {error.args[0].str()}") from error
        if found.error is not None or not found.partitions:
            raise TopicsUnsuitable(f"there is no topic {topic}: make it with 'thresher queue init'")
        return len(found.partitions)

    def _serve(self) -> None:
        while not self._ended:
            self._producer.poll(_POLL_SECONDS)
            self._give_up_replaced()
            if self._closing is not None:
                self._finish(self._closing)

    def _finish(self, seconds: float) -> None:
        if not self.flush(seconds):
            _give_up(self._producer)
        self._ended = True

    def _give_up_replaced(self) -> None:
        while self._replaced:
            _give_up(self._replaced.popleft())

    def _replace(self, failed: Producer, why: str) -> None:
        with self._lock:
            if self._producer is not failed or self.closed:
                return
            logger.warning("the %s producer is replaced: %s", self._name, why)
            self._producer, self._made_at = self._make(), time.monotonic()
            self._replaced.append(failed)


def _give_up(producer: Producer) -> None:
    """Have what a producer still has reported as unanswered."""
    producer.purge()
    producer.flush(1.0)
