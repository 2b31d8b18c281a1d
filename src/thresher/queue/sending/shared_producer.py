"""One idempotent producer for all queues of a service, with a thread that serves its delivery reports.

Only that thread polls the client, so the client's calls are never nested, which would crash the process. A report can
therefore call any method here.

Every record gets a report: confirmed, refused, or not answered in time. After a fatal error, or after a record timed
out, the client is replaced, and the records that it still held are reported as unanswered. After a time-out the old
client would begin a new epoch and send its records in flight again, including those that the broker already has.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.queue.problem import QueueClosed, TopicsUnsuitable

logger = logging.getLogger(__name__)

_POLL_SECONDS, _END_SECONDS = 0.02, 1.0
# How long a caller waits for room in the client's queue, and how often it checks.
_ROOM_SECONDS, _FULL_SECONDS = 30.0, 0.005

Report = Callable[[KafkaError | None, Message], None]


class SharedProducer:
    """A producer that any thread can use."""

    def __init__(self, name: str, make: Callable[[], Producer]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._producer = make()
        # The client being polled; and replaced clients with records not reported yet.
        self._polled = self._producer
        self._replaced: list[Producer] = []
        self._waiters: list[threading.Event] = []
        self.closed = self._ended = False
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
        again: bool = False,
    ) -> None:
        """Queue a record. The thread calls `report` once. Raises `KafkaException` if the client refuses the record.

        If the client's buffer is full, this waits for room, then raises `BrokerLost`; without `wait`, at once.
        With `again`, the record was queued before, and is accepted even while the producer is closing.
        """
        deadline: float | None = None
        while True:
            if self._ended or (self.closed and not again):
                raise QueueClosed("the service was closed")
            producer = self._producer
            try:
                producer.produce(topic, value, key, partition, report, None, 0, headers)
            except BufferError:
                # The thread makes room by serving reports.
                deadline = deadline or time.monotonic() + (_ROOM_SECONDS if wait else 0.0)
                if time.monotonic() >= deadline:
                    raise BrokerLost(
                        f"the buffer of the {self._name} client is full (queue.buffering.max.messages): the broker has "
                        "not accepted records fast enough. This record was not sent: wait for others, and try again"
                    ) from None
                time.sleep(_FULL_SECONDS)
            except KafkaException as error:
                if not error.args[0].fatal() and error.args[0].code() != KafkaError._FATAL:
                    raise
                self._replace(producer, error.args[0].str())
            else:
                if producer is not self._producer or self._ended:
                    # The client was replaced or closed meanwhile, so perhaps no thread serves it any more.
                    self._give_up(producer)
                return

    def flush(self, seconds: float) -> bool:
        """Wait until every record is reported. Return False on timeout. Called from a report, it does not wait."""
        if threading.current_thread() is self._thread:
            return self._all_reported()
        reported = threading.Event()
        self._waiters.append(reported)
        try:
            return self._ended or reported.wait(seconds)
        finally:
            self._waiters.remove(reported)

    def close(self, seconds: float) -> None:
        """Send the queued records, and end. Records left after `seconds` are reported as unanswered."""
        self.closed = True
        self._closing = time.monotonic() + seconds
        # A report that closes the producer cannot wait for the other reports.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def distrust(self) -> None:
        """Replace the client, because the record that is being reported timed out."""
        try:
            self._replace(self._polled, "a record timed out")
        except KafkaException:
            logger.exception("the %s producer could not be replaced", self._name)

    def partitions(self, topic: str, seconds: float) -> int:
        """Return a topic's number of partitions.

        Raises `TopicsUnsuitable` if there is no such topic, `BrokerRefused` if we may not write to it, or `BrokerLost`.
        """
        try:
            found = self._producer.list_topics(topic, timeout=seconds).topics[topic]
        except KafkaException as error:
            raise BrokerLost(f"the broker did not return the partitions of {topic}: {error.args[0].str()}") from error
        if found.error is not None and refusal_of(found.error) is Refusal.TOPIC_DENIED:
            raise broker_problem(f"the topic {topic} cannot be used", found.error, rights="Write")
        if found.error is not None or not found.partitions:
            raise TopicsUnsuitable(f"there is no topic {topic}: make it with 'thresher queue init'")
        return len(found.partitions)

    def _serve(self) -> None:
        while not self._is_over():
            self._poll(self._producer, _POLL_SECONDS)
            for replaced in tuple(self._replaced):
                self._poll(replaced, 0.0)
                if len(replaced) == 0:
                    self._replaced.remove(replaced)
            if self._all_reported():
                for waiter in tuple(self._waiters):
                    waiter.set()
        # A record queued before this is purged here; `produce` gives up a record queued after it.
        self._ended = True
        self._producer.purge()
        deadline = time.monotonic() + _END_SECONDS
        while not self._all_reported() and time.monotonic() < deadline:
            for each in (self._producer, *self._replaced):
                self._poll(each, 0.0)
            time.sleep(0.001)
        for waiter in tuple(self._waiters):
            waiter.set()

    def _is_over(self) -> bool:
        return self._closing is not None and (self._all_reported() or time.monotonic() > self._closing)

    def _all_reported(self) -> bool:
        return not any(len(each) for each in (*self._replaced, self._producer))

    def _poll(self, producer: Producer, seconds: float) -> None:
        self._polled = producer
        try:
            producer.poll(seconds)
        except BaseException:
            # An application's callback raised a BaseException, such as SystemExit: the other reports are still served.
            logger.exception("a delivery report of the %s producer failed", self._name)

    def _replace(self, failed: Producer, why: str) -> None:
        with self._lock:
            if self._producer is not failed or self._ended:
                return
            logger.warning("the %s producer is replaced: %s", self._name, why)
            self._producer = self._make()
        self._give_up(failed)

    def _give_up(self, producer: Producer) -> None:
        """Report the records that a client still holds as unanswered, at once: the client must not send them again."""
        producer.purge()
        if not self._ended:
            self._replaced.append(producer)
        elif threading.current_thread() is not self._thread:
            producer.poll(_POLL_SECONDS)
