"""Many queues on one topic, a few of them consumed by a service: messages a second, and bytes fetched per message.

Each consumer reads the whole topic and skips other queues' records. The clock starts when the last consumer has ended
its warm-up, and stops at the broker's answer to the last ack.
"""

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer

from bench.measuring.apart import Line
from bench.queues.place import PATIENCE_SECONDS, WARM_SHARE, Place
from thresher.queue import QueueConsumer
from thresher.queue.clients import KafkaClients

QUEUES, CONSUMED = 1_000, 10
_STATISTICS_MS = 1_000


def queue_ids() -> list[bytes]:
    return [b"queue-%d" % number for number in range(QUEUES)]


class Counting(KafkaClients):
    """Clients that report the bytes of records that they have fetched, again and again."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._bytes: dict[str, int] = {}
        self._new: set[str] = set()

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        return super().consumer({**properties, "stats_cb": self._take})

    def bytes_now(self) -> int:
        """Wait until every consumer has reported once more, and return the sum."""
        with self._told:
            self._new.clear()
            if not self._told.wait_for(lambda: len(self._new) == CONSUMED, PATIENCE_SECONDS):
                raise TimeoutError("the consumers did not tell their statistics")
            return sum(self._bytes.values())

    def _take(self, statistics: str) -> None:
        told = json.loads(statistics)
        with self._told:
            self._bytes[told["name"]] = told["rxmsg_bytes"]
            self._new.add(told["name"])
            self._told.notify_all()


def consume_few(place: Place, messages: int, line: Line) -> None:
    """Consume ten queues of a thousand; report messages a second, and bytes fetched per message."""
    line.send("ready")
    line.recv()
    clients = Counting()
    each = messages // QUEUES
    with place.service(clients, consumer={"statistics.interval.ms": _STATISTICS_MS}) as service:
        consumers = [service.queue(queue).consumer() for queue in queue_ids()[:: QUEUES // CONSUMED]]
        with ThreadPoolExecutor(CONSUMED) as threads:
            received = list(threads.map(lambda consumer: receive(consumer, each), consumers))
        assert consumers[0].flush(PATIENCE_SECONDS), "acks were not answered for"
        ended = time.perf_counter()
        fetched = clients.bytes_now()
    began = max(times[int(WARM_SHARE * each)] for times in received)
    counted = sum(at > began for times in received for at in times)
    line.send((counted / (ended - began), fetched / (CONSUMED * each)))


def receive(consumer: QueueConsumer, count: int) -> list[float]:
    """Receive and ack `count` messages; return the time of each."""
    times = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_SECONDS)
        assert message is not None, "no message came"
        times.append(time.perf_counter())
        message.ack()
    return times
