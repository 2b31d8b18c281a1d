"""What queues promise an application, on Kafka and in memory. `queue_worlds` judges what became of a message."""

import itertools
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, KafkaWorld, MemoryWorld, Service, World
from tests.processes import eventually
from thresher.core.errors import InvalidInput
from thresher.devstack.stack import Stack
from thresher.queue import AlreadySettled, Message, MessageId, MessageInvalid, Queue, QueueClosed, QueueConsumer
from thresher.queue.producer import GivenHeaders
from thresher.queue.wire.record import DELIVERY_COUNT


@pytest.fixture(scope="module")
def kafka(stack: Stack) -> Iterator[KafkaWorld]:
    """One service for all tests here: each has queues of its own."""
    world = KafkaWorld(stack.kafka.bootstrap)
    with world.service:
        yield world


@pytest.fixture(params=["memory", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "kafka":
        yield request.getfixturevalue("kafka")
        return
    memory = MemoryWorld()
    with memory.service:
        yield memory


@pytest.fixture
def service(world: World) -> Service:
    return world.service


@pytest.fixture
def queue(service: Service) -> Queue:
    return service.queue(f"orders/{uuid.uuid4()}")


def send(queue: Queue, *payloads: bytes) -> list[MessageId]:
    with queue.producer() as producer:
        return [sent.result(SOON_SECONDS) for sent in [producer.send_async(payload) for payload in payloads]]


def receive(consumer: QueueConsumer, count: int = 1) -> list[Message]:
    """Receive so many messages, and no more."""
    messages: list[Message] = []
    while len(messages) < count:
        batch = consumer.receive_batch(count - len(messages), SOON_SECONDS)
        assert batch, f"{len(messages)} of {count} messages came"
        messages += batch
    return messages


# Messages


def test_a_message_arrives_as_it_was_sent(service: Service, queue: Queue) -> None:
    began = time.time()
    with queue.producer() as producer:
        sent = producer.send("grüße", {"kind": "greeting"})
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        message.ack()
    assert message.payload == "grüße".encode()
    assert message.headers == (("kind", b"greeting"),)
    assert message.id == message.origin_id == sent
    assert message.queue == queue.id
    assert message.delivery_count == 1
    assert int(began * 1000) <= message.enqueued_at_ms <= time.time() * 1000
    assert message.enqueued_at.timestamp() * 1000 == pytest.approx(message.enqueued_at_ms)


def test_headers_keep_their_order_repeated_names_and_nulls(queue: Queue) -> None:
    headers: GivenHeaders = [("name", b"1"), ("other", "ü"), ("name", None), ("name", b""), ("größe", b"\xff\x00")]
    with queue.producer() as producer, queue.consumer() as consumer:
        producer.send(b"", headers)
        (message,) = receive(consumer)
    assert message.headers == (
        ("name", b"1"), ("other", "ü".encode()), ("name", None), ("name", b""), ("größe", b"\xff\x00"),
    )  # fmt: skip


def test_payloads_from_nothing_to_the_limit_arrive(service: Service, queue: Queue) -> None:
    # The queue's id counts too.
    largest = service.config.max_message_bytes - len(queue.id)
    payloads = [b"", os.urandom(1_000_000), os.urandom(largest)]
    send(queue, *payloads)
    with queue.consumer() as consumer:
        messages = receive(consumer, 3)
        for message in messages:
            message.ack()
    assert sorted(message.payload for message in messages) == sorted(payloads)


def test_a_message_above_the_limit_is_refused_before_sending(service: Service, queue: Queue) -> None:
    most = service.config.max_message_bytes
    with queue.producer() as producer:
        with pytest.raises(MessageInvalid, match="max-message-bytes"):
            producer.send(bytes(most - len(queue.id) + 1))
        with pytest.raises(MessageInvalid, match="max-message-bytes"):
            producer.send(b"", {"large": bytes(most)})
        with pytest.raises(MessageInvalid, match="max-message-bytes"):
            # Text counts by its bytes.
            producer.send(b"", {"ü" * (most // 2): b""})
        assert producer.flush(0)


@pytest.mark.parametrize("payload", [None, 5, bytearray(b"x"), ["x"], "\ud800"])
def test_a_payload_that_is_no_bytes_or_text_is_refused(queue: Queue, payload: Any) -> None:
    with queue.producer() as producer, pytest.raises(MessageInvalid):
        producer.send(payload)


@pytest.mark.parametrize(
    "headers",
    [
        {"name": 5},
        {b"name": b"x"},
        {"\ud800": b""},
        {"name": "\ud800"},
        [("name", b"x", 1)],
        ["name"],
        5,
        {DELIVERY_COUNT: b"7"},
    ],
)
def test_headers_that_cannot_be_sent_are_refused(queue: Queue, headers: Any) -> None:
    with queue.producer() as producer, pytest.raises(MessageInvalid):
        producer.send(b"x", headers)


# Queues


def test_ids_of_any_bytes_are_queues(service: Service) -> None:
    unique = uuid.uuid4().bytes
    ids = [b"\x00" + unique, (b"%/\xff.." + unique).ljust(200, b"\xfe")]
    for each in ids:
        send(service.queue(each), each)
    for each in ids:
        with service.queue(each).consumer() as consumer:
            (message,) = receive(consumer)
            message.ack()
        assert (message.queue, message.payload) == (each, each)


def test_text_is_the_same_queue_as_its_utf_8(service: Service) -> None:
    text = f"grüße-{uuid.uuid4()}"
    assert service.queue(text).id == service.get_or_create_queue(text.encode()).id
    send(service.queue(text), b"x")
    with service.queue(text.encode()).consumer() as consumer:
        receive(consumer)[0].ack()


@pytest.mark.parametrize("given", ["", b"", b"x" * 201, "ü" * 101, "\ud800", 5, None, bytearray(b"x")])
def test_what_is_no_id_is_refused(service: Service, given: Any) -> None:
    with pytest.raises(InvalidInput):
        service.queue(given)


def test_queues_do_not_see_each_other(service: Service) -> None:
    name = str(uuid.uuid4())
    one, other = service.queue(f"{name}-1"), service.queue(f"{name}-2")
    with one.producer() as to_one, other.producer() as to_other:
        for number in range(20):
            to_one.send_async(b"one %d" % number)
            to_other.send_async(b"other %d" % number)
    with one.consumer() as of_one, other.consumer() as of_other:
        ones, others = receive(of_one, 20), receive(of_other, 20)
        assert (of_one.receive(0), of_other.receive(0)) == (None, None)
        for message in (*ones, *others):
            message.ack()
    assert {message.payload for message in ones} == {b"one %d" % number for number in range(20)}
    assert {message.payload for message in others} == {b"other %d" % number for number in range(20)}


def test_thousands_of_queues_cost_no_thread_each(service: Service) -> None:
    name = str(uuid.uuid4())
    queues = [service.queue(f"{name}-{number}") for number in range(3_000)]
    with queues[0].producer() as producer:
        producer.send(b"the first one starts a thread")
    threads = threading.active_count()
    sent = [each.producer().send_async(each.id) for each in queues[1:]]
    assert threading.active_count() == threads
    for future in sent:
        future.result(SOON_SECONDS)
    for each in (queues[1], queues[-1]):
        with each.consumer() as consumer:
            (message,) = receive(consumer)
            message.ack()
        assert message.payload == each.id


# Sending


def test_a_send_returns_the_id_that_the_message_has(queue: Queue) -> None:
    with queue.producer() as producer:
        ids = {producer.send(b"x") for _ in range(3)}
    with queue.consumer() as consumer:
        messages = receive(consumer, 3)
        for message in messages:
            message.ack()
    assert len(ids) == 3
    assert {message.id for message in messages} == ids


def test_an_asynchronous_send_has_a_future_and_a_callback(queue: Queue) -> None:
    called: list[Future[MessageId]] = []
    with queue.producer() as producer:
        sent = producer.send_async(b"x", {"a": b"b"}, called.append)
        sent_id = sent.result(SOON_SECONDS)
        assert producer.flush(SOON_SECONDS)
    assert called == [sent]
    with queue.consumer() as consumer:
        assert receive(consumer)[0].id == sent_id


def test_a_flush_waits_for_every_send(queue: Queue) -> None:
    with queue.producer() as producer:
        sent = [producer.send_async(b"x") for _ in range(200)]
        assert producer.flush()
        assert all(each.done() for each in sent)


def test_a_send_cannot_be_cancelled_and_harms_no_other(queue: Queue) -> None:
    with queue.producer() as producer:
        sent = producer.send_async(b"x")
        assert not sent.cancel()
        assert sent.result(SOON_SECONDS) != producer.send(b"y")
    with queue.consumer() as consumer:
        assert {message.payload for message in receive(consumer, 2)} == {b"x", b"y"}


def test_a_closed_producer_takes_no_messages(queue: Queue) -> None:
    with queue.producer() as producer:
        producer.send_async(b"x")
    with pytest.raises(QueueClosed):
        producer.send_async(b"y")
    with pytest.raises(QueueClosed):
        producer.send(b"y")
    producer.close()


# Receiving


def test_a_receive_waits_no_longer_than_it_is_told(queue: Queue) -> None:
    with queue.consumer() as consumer:
        assert consumer.receive(0) is None
        assert consumer.receive(0.05) is None
        assert consumer.receive_batch(10, 0.05) == []


def test_a_batch_has_what_is_there_and_no_more_than_asked(queue: Queue) -> None:
    payloads = [b"%d" % number for number in range(5)]
    send(queue, *payloads)
    with queue.consumer() as consumer:
        eventually(lambda: consumer.in_progress == 5, SOON_SECONDS)
        first, second = consumer.receive_batch(3), consumer.receive_batch(100)
        assert (len(first), len(second)) == (3, 2)
        for most in (0, -1):
            with pytest.raises(ValueError, match="at least one"):
                consumer.receive_batch(most)
        for message in (*first, *second):
            message.ack()
    assert sorted(message.payload for message in (*first, *second)) == payloads


def test_a_message_that_comes_later_ends_the_waiting(queue: Queue) -> None:
    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        waiting = pool.submit(consumer.receive)
        assert consumer.receive(0.1) is None
        send(queue, b"x")
        message = waiting.result(SOON_SECONDS)
        assert message is not None
        message.ack()


def test_close_ends_receives_that_wait(queue: Queue) -> None:
    with ThreadPoolExecutor(2) as pool, queue.consumer() as consumer:
        waiting: list[Future[Any]] = [pool.submit(consumer.receive), pool.submit(consumer.receive_batch, 5)]
        consumer.close()
        for each in waiting:
            with pytest.raises(QueueClosed):
                each.result(SOON_SECONDS)


def test_iteration_yields_messages_and_ends_at_close(queue: Queue) -> None:
    send(queue, b"1", b"2", b"3")
    with queue.consumer() as consumer:
        seen = []
        for message in consumer:
            seen.append(message.payload)
            message.ack()
            if len(seen) == 3:
                consumer.close()
    assert sorted(seen) == [b"1", b"2", b"3"]


def test_a_listener_hears_of_messages_and_of_the_end(queue: Queue) -> None:
    heard = threading.Event()
    with queue.consumer() as consumer:
        consumer.listen(heard.set)
        send(queue, b"x")
        assert heard.wait(SOON_SECONDS)
        message = consumer.receive(0)
        assert message is not None
        message.ack()
        heard.clear()
    assert heard.is_set()


def test_no_more_than_max_in_progress_are_started(world: World, queue: Queue) -> None:
    with world.make_service(max_in_progress=3) as service:
        same = service.queue(queue.id)
        send(same, *(b"%d" % number for number in range(5)))
        with same.consumer() as consumer:
            messages = receive(consumer, 3)
            assert consumer.receive(0.2) is None
            assert consumer.in_progress == 3
            messages[1].ack()
            messages += receive(consumer)
            for message in (messages[0], *messages[2:]):
                message.ack()
            messages += receive(consumer)
            messages[-1].ack()
    assert {message.payload for message in messages} == {b"%d" % number for number in range(5)}


def test_consumers_of_one_queue_share_its_messages(queue: Queue) -> None:
    seen: list[list[bytes]] = [[], []]

    def consume(consumer: QueueConsumer, mine: list[bytes]) -> None:
        for message in consumer:
            mine.append(message.payload)
            message.ack()

    with (
        ThreadPoolExecutor(2) as pool,
        queue.producer() as producer,
        queue.consumer() as one,
        queue.consumer() as other,
    ):
        pool.submit(consume, one, seen[0])
        pool.submit(consume, other, seen[1])
        numbers = itertools.count()
        # Until both are members, one of them may have them all.
        deadline = time.monotonic() + SOON_SECONDS
        while not all(seen) and time.monotonic() < deadline:
            producer.send(b"%d" % next(numbers))
        for _ in range(100):
            producer.send_async(b"%d" % next(numbers))
        producer.flush()
        count = next(numbers)
        eventually(lambda: sum(map(len, seen)) >= count, SOON_SECONDS, lambda: f"{seen} of {count}")
        one.close()
        other.close()
    assert all(seen)
    assert sorted(seen[0] + seen[1]) == sorted(b"%d" % number for number in range(count))


def test_threads_share_a_producer_and_a_consumer(world: World, queue: Queue) -> None:
    seen: list[bytes] = []
    ids: list[MessageId] = []

    def produce(thread: int) -> None:
        ids.extend(producer.send(b"%d-%d" % (thread, number)) for number in range(25))

    def consume() -> None:
        while len(seen) < 100:
            if (message := consumer.receive(0.1)) is not None:
                message.ack()
                seen.append(message.payload)

    with ThreadPoolExecutor(8) as pool, queue.producer() as producer, queue.consumer() as consumer:
        work = [pool.submit(produce, thread) for thread in range(4)] + [pool.submit(consume) for _ in range(4)]
        for each in work:
            each.result(2 * SOON_SECONDS)
    assert sorted(seen) == sorted(b"%d-%d" % (thread, number) for thread in range(4) for number in range(25))
    world.require_ended(queue, ids[0])
    world.require_ended(queue, ids[-1])


# Settling


def test_acks_count_in_any_order(world: World, queue: Queue) -> None:
    sent = send(queue, *(b"%d" % number for number in range(4)))
    with queue.consumer() as consumer:
        messages = {message.id: message for message in receive(consumer, 4)}
        for message_id in (sent[2], sent[0], sent[3]):
            messages[message_id].ack(sync=message_id == sent[0])
        assert consumer.flush()
        assert consumer.in_progress == 1
    for message_id in (sent[2], sent[0], sent[3]):
        world.require_ended(queue, message_id)
    world.require_redelivery(queue, sent[1])


@pytest.mark.parametrize("delay", [0.0, 90.5])
def test_a_nack_gives_back_after_its_delay(world: World, queue: Queue, delay: float) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        # What was started goes back to where it can be received: to another consumer, in this test.
        consumer.leave()
        message.nack(delay, sync=True)
    world.require_redelivery(queue, sent, delay=delay)


def test_a_reject_makes_a_dead_letter_with_its_reason(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        receive(consumer)[0].reject("no such öder", sync=True)
    world.require_dead(queue, sent, "no such öder")


def test_an_extended_message_can_still_be_settled(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        message.extend(3600)
        message.ack()
    world.require_extended(queue, sent, 3600)


def test_a_message_is_settled_once(world: World, queue: Queue) -> None:
    sent = send(queue, b"ack", b"nack", b"reject")
    with queue.consumer() as consumer:
        messages = {message.payload: message for message in receive(consumer, 3)}
        consumer.leave()
        messages[b"ack"].ack()
        messages[b"nack"].nack()
        messages[b"reject"].reject("bad")
        for message in messages.values():
            for again in (message.ack, message.nack, partial(message.reject, "x"), partial(message.extend, 1)):
                with pytest.raises(AlreadySettled):
                    again()
    world.require_ended(queue, sent[0])
    world.require_redelivery(queue, sent[1])
    world.require_dead(queue, sent[2], "bad")


def test_times_out_of_range_settle_nothing(queue: Queue) -> None:
    send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        for seconds in (-1.0, 43_200.5, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="seconds"):
                message.nack(seconds)
            with pytest.raises(ValueError, match="seconds"):
                message.extend(seconds)
        message.ack()


def test_after_close_nothing_can_be_settled_or_received(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
    calls: list[Callable[[], object]] = [
        message.ack,
        message.nack,
        lambda: message.reject("x"),
        lambda: message.extend(1),
        consumer.receive,
        lambda: consumer.receive(0),
        lambda: consumer.receive_batch(5, 0),
    ]
    for call in calls:
        with pytest.raises(QueueClosed):
            call()
    assert list(consumer) == []
    consumer.close()
    world.require_redelivery(queue, sent)


def test_close_gives_back_what_was_never_received_uncounted(world: World, queue: Queue) -> None:
    sent = send(queue, b"1", b"2", b"3")
    with queue.consumer() as consumer:
        eventually(lambda: consumer.in_progress == 3, SOON_SECONDS)
        (received,) = receive(consumer)
    for message_id in sent:
        world.require_redelivery(queue, message_id, counted=message_id == received.id)


def test_a_consumer_that_left_still_has_what_was_started(queue: Queue) -> None:
    send(queue, b"1", b"2")
    with queue.consumer() as consumer:
        eventually(lambda: consumer.in_progress == 2, SOON_SECONDS)
        consumer.leave()
        send(queue, b"3")
        for message in receive(consumer, 2):
            message.ack(sync=True)
        assert consumer.receive(0) is None
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        message.ack()
    assert message.payload == b"3"


# Running


def test_run_acks_on_return_and_gives_back_on_an_exception(world: World, queue: Queue) -> None:
    good, bad, own = send(queue, b"good", b"bad", b"own")
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if message.delivery_count == 1:
            handled.append(message.payload)
        if message.payload == b"own":
            message.reject("by the handler")
        if message.payload == b"bad":
            raise RuntimeError("as the test wants it")

    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        running = pool.submit(consumer.run, handle, 2)
        # The back-off is a second: in this test no other consumer gets it meanwhile.
        eventually(lambda: len(handled) == 3 and consumer.in_progress == 0, SOON_SECONDS)
        consumer.close()
        running.result(SOON_SECONDS)
    assert sorted(handled) == [b"bad", b"good", b"own"]
    world.require_redelivery(queue, bad, delay=1.0)
    world.require_ended(queue, good)
    world.require_dead(queue, own, "by the handler")


def test_run_calls_handlers_at_the_same_time(queue: Queue) -> None:
    together = threading.Barrier(3)
    met: list[int] = []
    send(queue, b"1", b"2", b"3")
    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        running = pool.submit(consumer.run, lambda _: met.append(together.wait(SOON_SECONDS)), concurrency=3)
        eventually(lambda: len(met) == 3, SOON_SECONDS)
        consumer.close()
        running.result(SOON_SECONDS)
    assert sorted(met) == [0, 1, 2]


def test_run_ends_by_sigterm_when_its_handler_has_returned(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with queue.consumer() as consumer:
            consumer.run(lambda _: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(QueueClosed):
                consumer.receive()
        assert heard == []
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    world.require_ended(queue, sent)


def test_run_needs_one_thread_at_least(queue: Queue) -> None:
    for concurrency in (0, -1):
        with queue.consumer() as consumer, pytest.raises(ValueError, match="concurrency"):
            consumer.run(lambda _: None, concurrency)


# The end


def test_a_closed_service_has_closed_all(world: World, queue: Queue) -> None:
    with world.make_service() as service:
        same = service.queue(queue.id)
        producer, consumer = same.producer(), same.consumer()
        producer.send(b"x")
        (message,) = receive(consumer)
    for call in (same.producer, same.consumer, consumer.receive, message.ack, lambda: producer.send(b"y")):
        with pytest.raises(QueueClosed):
            call()
    service.close()
