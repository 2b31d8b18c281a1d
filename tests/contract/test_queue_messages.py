"""The contract of messages, on Kafka and in memory: they arrive as they were sent, or are refused."""

import os
import time
from typing import Any

import pytest

from tests.contract.queue_worlds import STALL_SECONDS, Service, receive, send
from thresher.queue import MessageInvalid, Queue
from thresher.queue.sending.producer import GivenHeaders
from thresher.queue.wire.record import DELIVERY_COUNT


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
    # The time of the sender's clock, or of its broker's.
    assert abs(message.enqueued_at_ms / 1000 - began) < STALL_SECONDS
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
    # The queue's id counts towards the limit.
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
            # Text counts by its UTF-8 bytes.
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
