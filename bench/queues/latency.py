"""The time of a message from just before its `send` to its `receive`, when messages come at random times.

The floor is a plain loop with the same transaction: poll, begin, Start, flush, offsets, commit, and only then delivery.
Both have the same sender, ack by an End without waiting for it, and use one monotonic clock.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.measuring.apart import Line, running
from bench.queues.place import PATIENCE_SECONDS, QUEUE, Learnt, Place, checked, payloads
from bench.queues.receiving import bytes_of, id_of, start_of
from thresher.queue.wire.marker import Marker, MarkerType, encode

PER_SECOND, WARM_SECONDS = 20, 3.0
# A payload begins with its message's number.
_NUMBER_BYTES = 8


def p50_ms(place: Place, receiver: Callable[..., None], seconds: float, *arguments: object) -> float:
    """Return the median latency of the messages that were sent after the warm-up, in milliseconds."""
    moments = arrivals(WARM_SECONDS + seconds)
    with (
        running(receive_first, place, len(moments), receiver, *arguments) as receiving,
        running(send, place, moments) as sending,
    ):
        sending.send("go")
        sent = told(sending, WARM_SECONDS + seconds)
        received = told(receiving, 0)
    start = sent[0]
    ways = [received[number] - at for number, at in sent.items() if at - start >= WARM_SECONDS * 1e9]
    return statistics.median(ways) / 1e6


def arrivals(seconds: float) -> list[float]:
    """Return the time of each message, in seconds from the start: the same at each call."""
    draw = random.Random(1)
    moments: list[float] = []
    moment = draw.expovariate(PER_SECOND)
    while moment < seconds:
        moments.append(moment)
        moment += draw.expovariate(PER_SECOND)
    return moments


def numbered(number: int, content: bytes) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big") + content[_NUMBER_BYTES:]


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:_NUMBER_BYTES], "big")


def send(place: Place, moments: Sequence[float], line: Line) -> None:
    """Send each message at its time; report when each `send` was called."""
    content = payloads(1)[0]
    sent: dict[int, int] = {}
    with place.service() as service, service.queue(QUEUE).producer() as producer:
        line.send("ready")
        line.recv()
        start = time.monotonic()
        for number, moment in enumerate(moments):
            payload = numbered(number, content)
            time.sleep(max(0.0, start + moment - time.monotonic()))
            sent[number] = time.monotonic_ns()
            producer.send(payload)
        line.send(sent)


def through_service(place: Place, arrived: Callable[[bytes], bool]) -> None:
    with place.service() as service, service.queue(QUEUE).consumer() as consumer:
        while (message := consumer.receive(PATIENCE_SECONDS)) is not None and arrived(message.payload):
            message.ack()


def by_plain_loop(place: Place, arrived: Callable[[bytes], bool], learnt: Learnt) -> None:
    config = place.config()
    consumer = Consumer({**learnt.consumer, "group.id": f"plain-{place.name}", "auto.offset.reset": "earliest"})
    consumer.subscribe([config.message_topic])
    starting = Producer(learnt.starting(f"plain-{place.name}"))
    starting.init_transactions()
    ending = Producer({**learnt.producer, "partitioner": "murmur2_random"})
    more = True
    while more:
        message = checked(consumer.poll(PATIENCE_SECONDS))
        partition, offset = id_of(message)
        starting.begin_transaction()
        starting.produce(config.marker_topic, encode(start_of(message)), QUEUE)
        starting.flush()
        starting.send_offsets_to_transaction(
            [TopicPartition(config.message_topic, partition, offset + 1)], consumer.consumer_group_metadata()
        )
        starting.commit_transaction()
        more = arrived(bytes_of(message))
        ending.produce(config.marker_topic, encode(Marker(type=MarkerType.END, message_id=id_of(message))), QUEUE)
        ending.poll(0)
    ending.flush()
    consumer.close()


def receive_first(
    place: Place, count: int, receiver: Callable[..., None], *arguments_and_line: object
) -> None:  # fmt: skip
    """After a first message, note when each message arrives; report the times when all have arrived."""
    *arguments, last = arguments_and_line
    line: Line = last
    times: dict[int, int] = {}
    first = True

    def arrived(payload: bytes) -> bool:
        nonlocal first
        now = time.monotonic_ns()
        if first:
            first = False
            line.send("ready")
            return True
        times.setdefault(number_of(payload), now)
        return len(times) < count

    receiver(place, arrived, *arguments)
    line.send(times)


def told(line: Line, seconds: float) -> dict[int, int]:
    if not line.poll(seconds + PATIENCE_SECONDS):
        raise TimeoutError("the messages did not arrive")
    answer: dict[int, int] = line.recv()
    return answer
