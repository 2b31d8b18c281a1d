"""Sends messages without waiting for each: through a service, and with a plain producer with the same properties.

Both get a callback for every delivery; for the plain producer, `poll` is called after each message, or by a thread.
Each side counts messages a second from the end of its warm-up to the last delivery.
"""

import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from bench.measuring.apart import Line
from bench.queues.place import PATIENCE_SECONDS, QUEUE, WARM_SHARE, Learnt, Place, payloads
from thresher.queue.sending.sent import Sent


class Heard:
    """Counts the deliveries."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed: list[str] = []

    def sent(self, sent: Sent) -> None:
        """The callback of a service."""
        if (error := sent.exception()) is not None:
            self.failed.append(str(error))
        else:
            self.delivered += 1

    def report(self, error: KafkaError | None, _: Message) -> None:
        """The callback of a plain producer."""
        if error is not None:
            self.failed.append(error.str())
        else:
            self.delivered += 1


def through_service(place: Place, messages: int, line: Line) -> None:
    """Call `send_async` for each message, with a callback, then `flush`."""
    heard = Heard()
    with place.service() as service, service.queue(QUEUE).producer() as producer:
        send_async, sent = producer.send_async, heard.sent

        def send(payload: bytes) -> None:
            send_async(payload, callback=sent)

        measure(send, lambda: producer.flush(PATIENCE_SECONDS), heard, messages, line)


def by_loop(place: Place, learnt: Learnt, messages: int, line: Line) -> None:
    """Produce each message, and call `poll` after it."""
    producer, heard = Producer(dict(learnt.producer)), Heard()
    produce, poll, topic, report = producer.produce, producer.poll, place.name, heard.report

    def send(payload: bytes) -> None:
        while True:
            try:
                produce(topic, payload, QUEUE, -1, report)
            except BufferError:
                poll(0.005)
            else:
                poll(0)
                return

    measure(send, lambda: producer.flush(PATIENCE_SECONDS) == 0, heard, messages, line)


def by_thread(place: Place, learnt: Learnt, messages: int, line: Line) -> None:
    """Produce each message, while a thread calls `poll`."""
    producer, heard = Producer(dict(learnt.producer)), Heard()
    produce, topic, report = producer.produce, place.name, heard.report
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            producer.poll(0.1)

    def send(payload: bytes) -> None:
        while True:
            try:
                produce(topic, payload, QUEUE, -1, report)
            except BufferError:
                time.sleep(0.005)
            else:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    measure(send, lambda: producer.flush(PATIENCE_SECONDS) == 0, heard, messages, line)
    done.set()
    thread.join()


def measure(
    send: Callable[[bytes], None], flush: Callable[[], bool], heard: Heard, messages: int, line: Line
) -> None:  # fmt: skip
    """Send the warm-up and wait, then send the messages; report messages a second."""
    contents = payloads()
    line.send("ready")
    line.recv()
    warm = int(WARM_SHARE * messages)
    for number in range(warm):
        send(contents[number % len(contents)])
    assert flush(), "the warm-up was not answered for"
    began = time.perf_counter()
    for number in range(messages):
        send(contents[number % len(contents)])
    assert flush(), "messages were not answered for"
    took = time.perf_counter() - began
    assert heard.delivered == warm + messages, heard.failed[:1]
    line.send(messages / took)
