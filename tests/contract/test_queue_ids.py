"""The contract of queue ids, on Kafka and in memory: any bytes, any number of queues, each separate."""

import threading
import uuid
from typing import Any

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, Service, receive, send
from thresher.core.errors import InvalidInput


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
def test_an_invalid_queue_id_is_refused(service: Service, given: Any) -> None:
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
    # Meanwhile, threads of other tests may end, and no other thread of queues may begin.
    before = set(threading.enumerate())
    sent = [each.producer().send_async(each.id) for each in queues[1:]]
    begun = {thread.name for thread in set(threading.enumerate()) - before}
    assert not any(name.startswith("thresher-queue") for name in begun)
    for future in sent:
        future.result(SOON_SECONDS)
    for each in (queues[1], queues[-1]):
        with each.consumer() as consumer:
            (message,) = receive(consumer)
            message.ack()
        assert message.payload == each.id
