"""Queues in memory, beyond the contract of queues: the test's own clock, redelivery, dead letters."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.processes import eventually
from tests.set_clock import SetClock
from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import InvalidInput
from thresher.observe.histogram import Histogram
from thresher.observe.prometheus import scrape
from thresher.queue import Message, MessageId, Queue, QueueClosed, QueueConfig, QueueConsumer
from thresher.queue.memory import DeadLetter, MemoryQueueService
from thresher.queue.memory.member import MemoryMember
from thresher.queue.running import back_off

SOON_SECONDS = 30.0


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def service(clock: SetClock) -> Iterator[MemoryQueueService]:
    with MemoryQueueService(monotonic=clock, wall_clock=lambda: 1_700_000_000.25) as service:
        yield service


@pytest.fixture
def queue(service: MemoryQueueService) -> Queue:
    return service.queue("orders")


def send(queue: Queue, *payloads: bytes) -> list[MessageId]:
    with queue.producer() as producer:
        return [producer.send(payload, {"kind": "test"}) for payload in payloads]


def receive(consumer: QueueConsumer) -> Message:
    message = consumer.receive(0)
    assert message is not None
    return message


def test_a_message_keeps_all_but_its_id_over_redeliveries(queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    ids = []
    for count in range(1, 4):
        with queue.consumer() as consumer:
            message = receive(consumer)
            assert (message.payload, message.headers, message.queue) == (b"x", (("kind", b"test"),), b"orders")
            assert (message.origin_id, message.delivery_count) == (sent, count)
            assert message.enqueued_at_ms == 1_700_000_000_250
            ids.append(message.id)
    assert ids[0] == sent
    assert len(set(ids)) == 3


def test_a_nacked_message_comes_back_when_its_delay_has_passed(queue: Queue, clock: SetClock) -> None:
    send(queue, b"late", b"later")
    with queue.consumer() as consumer:
        late, later = receive(consumer), receive(consumer)
        later.nack(20)
        late.nack(10)
        assert consumer.in_progress == 0
        clock.now += 9.9
        assert consumer.receive(0) is None
        clock.now += 0.2
        assert receive(consumer).payload == b"late"
        assert consumer.receive(0) is None
        clock.now += 10
        again = receive(consumer)
    assert (again.payload, again.delivery_count, again.origin_id) == (b"later", 2, later.id)


def test_messages_of_equal_delay_come_back_in_order(queue: Queue, clock: SetClock) -> None:
    send(queue, b"1", b"2", b"3")
    with queue.consumer() as consumer:
        for message in consumer.receive_batch(3):
            message.nack(5)
        clock.now += 5
        assert [message.payload for message in consumer.receive_batch(3, 0)] == [b"1", b"2", b"3"]


def test_a_waiting_receive_follows_the_clock(queue: Queue, clock: SetClock) -> None:
    send(queue, b"x")
    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        receive(consumer).nack(60)
        waiting = pool.submit(consumer.receive, SOON_SECONDS)
        clock.now += 61
        again = waiting.result(SOON_SECONDS)
    assert again is not None
    assert again.delivery_count == 2


def test_a_delay_outlives_its_consumer(queue: Queue, clock: SetClock) -> None:
    send(queue, b"x")
    with queue.consumer() as consumer:
        receive(consumer).nack(60)
    with queue.consumer() as consumer:
        assert consumer.receive(0) is None
        clock.now += 61
        assert receive(consumer).delivery_count == 2


def test_messages_of_a_closed_consumer_go_to_another_at_once(queue: Queue) -> None:
    one = queue.consumer()
    sent = send(queue, b"1", b"2", b"3")
    received = receive(one)
    with queue.consumer() as other:
        assert other.receive(0) is None
        one.close()
        again = other.receive_batch(10, 0)
    assert [message.origin_id for message in again] == sent
    assert [message.delivery_count for message in again] == [2, 1, 1]
    assert received.id not in {message.id for message in again}


def test_messages_go_to_the_consumer_with_the_fewest(queue: Queue) -> None:
    with queue.consumer() as one, queue.consumer() as other:
        send(queue, *(b"%d" % number for number in range(10)))
        assert (one.in_progress, other.in_progress) == (5, 5)
        assert len(one.receive_batch(10, 0)) == 5
        send(queue, b"10", b"11")
        assert (one.in_progress, other.in_progress) == (7, 5)


def test_a_consumer_keeps_few_messages_from_the_others(queue: Queue) -> None:
    send(queue, *(b"%d" % number for number in range(20)))
    with queue.consumer() as idle, queue.consumer() as busy:
        assert idle.in_progress == 8
        seen = []
        while (message := busy.receive(0)) is not None:
            seen.append(message.payload)
            message.ack()
        assert len(seen) == 12


def test_a_rejected_message_is_a_dead_letter(service: MemoryQueueService, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        receive(consumer).nack()
        last = receive(consumer)
        last.reject("no \ud800 such order")
        assert consumer.receive(0) is None
    letter = DeadLetter(
        queue=b"orders",
        payload=b"x",
        headers=(("kind", b"test"),),
        id=last.id,
        origin_id=sent,
        delivery_count=2,
        enqueued_at_ms=1_700_000_000_250,
        reason="no ? such order",
    )
    assert service.dead_letters("orders") == service.dead_letters(b"orders") == (letter,)
    assert service.dead_letters("others") == ()
    with pytest.raises(InvalidInput):
        service.dead_letters("")


def test_a_failing_handler_gets_its_message_after_back_off(queue: Queue, clock: SetClock) -> None:
    send(queue, b"x")
    counts: list[int] = []
    nacked = threading.Semaphore(0)

    def handle(message: Message) -> None:
        counts.append(message.delivery_count)
        nacked.release()
        if message.delivery_count < 3:
            raise RuntimeError("as the test wants it")

    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        running = pool.submit(consumer.run, handle)
        for count in (1, 2, 3):
            assert nacked.acquire(timeout=SOON_SECONDS)
            # The nack follows the handler.
            eventually(lambda: consumer.in_progress == 0, SOON_SECONDS)
            clock.now += back_off(count)
        consumer.close()
        running.result(SOON_SECONDS)
    assert counts == [1, 2, 3]


def test_the_applications_configuration_is_validated() -> None:
    servers = {"bootstrap_servers": "kafka:9092", "message_topic": "m", "marker_topic": "n"}
    full: dict[str, Any] = {**servers, "max_message_bytes": 2_000}
    for given in (full, QueueConfig(**full), {"max-message-bytes": 2_000}):
        assert MemoryQueueService(given).config.max_message_bytes == 2_000
    bad: list[dict[str, Any]] = [{"max-in-progress": 0}, {"no-such-key": 1}, {"marker-topic": "messages"}]
    for each in bad:
        with pytest.raises(ConfigurationInvalid):
            MemoryQueueService(each)


def test_a_closed_service_has_no_thread_and_keeps_dead_letters(clock: SetClock) -> None:
    # Threads of other tests may end meanwhile, so only new threads count.
    before = set(threading.enumerate())
    with MemoryQueueService(monotonic=clock) as service:
        queue = service.queue("orders")
        send(queue, b"1", b"2")
        with queue.consumer() as consumer:
            receive(consumer).nack(60)
            assert len(set(threading.enumerate()) - before) == 1
            receive(consumer).reject("bad")
    assert not set(threading.enumerate()) - before
    assert [letter.reason for letter in service.dead_letters("orders")] == ["bad"]
    with pytest.raises(QueueClosed):
        queue.consumer()


def test_metrics_count_every_event(service: MemoryQueueService, queue: Queue, clock: SetClock) -> None:
    send(queue, *(b"%d" % number for number in range(7)))
    consumer = queue.consumer()
    done, again, never, *_left = consumer.receive_batch(6, 0)
    clock.now += 2.0
    done.ack()
    again.nack(5)
    never.reject("no good")
    now = {each.family.name.removeprefix("thresher_queue_"): each.value for each in service.metrics()}
    assert (now["messages_produced"], now["messages_consumed"], now["messages_in_progress"]) == (7, 6, 4)
    assert (now["messages_acked"], now["messages_given_back"], now["messages_rejected"]) == (1, 1, 1)
    taken = now["receive_to_ack_seconds"]
    assert isinstance(taken, Histogram)
    assert (taken.count, taken.sum) == (1, 2.0)
    page = scrape(service.families(), service.metrics()).content
    assert isinstance(page, bytes)
    assert 'thresher_queue_messages_acked_total{topic="messages"} 1.0' in page.decode()
    consumer.close()
    now = {each.family.name.removeprefix("thresher_queue_"): each.value for each in service.metrics()}
    assert (now["messages_in_progress"], now["messages_given_back"]) == (0, 5)


def test_a_message_taken_while_its_consumer_closes_counts_as_delivered(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(queue, b"x")
    consumer = queue.consumer()
    received = MemoryMember.received
    closing = threading.Thread(target=consumer.close)

    def received_late(member: MemoryMember, messages: list[Message]) -> list[Message]:
        closing.start()
        closing.join(0.3)
        return received(member, messages)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryMember, "received", received_late)
        assert receive(consumer).delivery_count == 1
    closing.join(SOON_SECONDS)
    with queue.consumer() as other:
        assert receive(other).delivery_count == 2


def test_a_delayed_message_is_first_delivered_when_due(queue: Queue, clock: SetClock) -> None:
    consumer = queue.consumer()
    sent = queue.producer().send(b"later", {"h": "v"}, delay=10)
    clock.now += 9.9
    assert consumer.receive(0) is None
    clock.now += 0.2
    message = receive(consumer)
    assert (message.delivery_count, message.origin_id, message.headers) == (1, sent, (("h", b"v"),))


def test_a_message_past_its_delivery_limit_is_dead(service: MemoryQueueService, queue: Queue) -> None:
    consumer = queue.consumer()
    queue.producer().send(b"poison", max_deliveries=2)
    for delivery in (1, 2):
        message = receive(consumer)
        assert message.delivery_count == delivery
        message.nack()
    assert consumer.receive(0) is None
    (letter,) = service.dead_letters("orders")
    assert (letter.payload, letter.delivery_count) == (b"poison", 2)
    assert letter.reason == "it was delivered 2 times, and max-deliveries is 2"


def test_a_message_past_its_ttl_is_dead(service: MemoryQueueService, queue: Queue, clock: SetClock) -> None:
    consumer = queue.consumer()
    queue.producer().send(b"old", ttl=5, delay=60)
    clock.now += 61
    message = receive(consumer)
    message.nack()
    message = receive(consumer)
    clock.now += 5
    message.nack()
    assert consumer.receive(0) is None
    assert "ttl is 5 s" in service.dead_letters("orders")[0].reason


def test_limits_may_come_from_the_configuration() -> None:
    keys = {"max-deliveries": 1, "max-deliveries-by-queue": {"many": 2}}
    with MemoryQueueService(keys) as service:
        for name, most in (("one", 1), ("many", 2)):
            queue = service.queue(name)
            send(queue, b"x")
            consumer = queue.consumer()
            for _ in range(most):
                receive(consumer).nack()
            assert consumer.receive(0) is None
            assert len(service.dead_letters(name)) == 1


def test_an_undelivered_message_is_not_past_its_delivery_limit(queue: Queue, service: MemoryQueueService) -> None:
    consumer = queue.consumer()
    queue.producer().send(b"x", max_deliveries=1)
    consumer.close()
    assert receive(queue.consumer()).delivery_count == 1
    assert service.dead_letters("orders") == ()
