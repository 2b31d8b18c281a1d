"""A send has one of three outcomes: the broker has the message, refuses it, or the outcome is unknown."""

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from thresher.kafka.problem import BrokerLost
from thresher.queue.metrics import Figures
from thresher.queue.problem import MessageInvalid, SendRefused, SendUnknown
from thresher.queue.sending.producer import QueueProducer
from thresher.queue.sending.shared_producer import Report, SharedProducer
from thresher.queue.wire.marker import MarkerType, decode
from thresher.queue.wire.record import MAX_DELIVERIES, TTL

MOST_BYTES = 1_000
REFUSALS = [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_RECORD]
UNKNOWNS = [
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.UNKNOWN,
]


class Sent:
    """A record with its partition and offset."""

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def latency(self) -> float:
        return 0.01


class Recorded:
    """A client that queues records, and answers when the test says so."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.records: list[tuple[str, bytes, bytes, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.distrusted = 0

    def distrust(self) -> None:
        self.distrusted += 1

    def produce(self, topic: str, value: bytes, key: bytes, report: Report, **more: Any) -> None:
        if self.error is not None:
            raise self.error
        self.records.append((topic, value, key, more))
        self.reports.append(report)

    def answer(self, code: int | None = None) -> None:
        self.reports.pop()(None if code is None else KafkaError(code), cast("Any", Sent()))


@pytest.fixture
def client() -> Recorded:
    return Recorded()


@pytest.fixture
def producer(client: Recorded) -> QueueProducer:
    return QueueProducer(
        b"q",
        "topic",
        cast("SharedProducer", client),
        Figures(),
        delayed=("markers", lambda _: 5),
        most_bytes=MOST_BYTES,
        seconds=1.0,
    )


def test_a_confirmed_message_has_the_place_of_its_record(producer: QueueProducer, client: Recorded) -> None:
    sent = producer.send_async(b"x")
    assert not sent.done()
    client.answer()
    assert sent.result(0) == (2, 7)


@pytest.mark.parametrize("code", UNKNOWNS)
def test_an_unanswered_send_is_unknown(producer: QueueProducer, client: Recorded, code: int) -> None:
    sent = producer.send_async(b"x")
    client.answer(code)
    assert isinstance(sent.exception(0), SendUnknown)


def test_only_a_timed_out_record_replaces_the_client(producer: QueueProducer, client: Recorded) -> None:
    for code in (None, KafkaError._PURGE_INFLIGHT, KafkaError.MSG_SIZE_TOO_LARGE):
        producer.send_async(b"x")
        client.answer(code)
    assert client.distrusted == 0
    producer.send_async(b"x")
    client.answer(KafkaError._MSG_TIMED_OUT)
    assert client.distrusted == 1


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_send_says_so(producer: QueueProducer, client: Recorded, code: int) -> None:
    sent = producer.send_async(b"x")
    client.answer(code)
    assert isinstance(sent.exception(0), SendRefused)


def test_a_message_above_the_limit_never_reaches_the_client(producer: QueueProducer, client: Recorded) -> None:
    for payload, headers in ((bytes(MOST_BYTES), None), (b"", {"name": bytes(MOST_BYTES)})):
        with pytest.raises(MessageInvalid, match="max-message-bytes"):
            producer.send_async(payload, headers)
    assert client.reports == []
    # The queue's id counts towards the size.
    producer.send_async(bytes(MOST_BYTES - 1))
    assert len(client.reports) == 1


def test_a_send_refused_by_the_client_awaits_no_answer(producer: QueueProducer, client: Recorded) -> None:
    client.error = BrokerLost("its queue is full")
    with pytest.raises(BrokerLost):
        producer.send_async(b"x")
    assert producer.flush(0)


def test_limits_of_a_message_are_in_its_headers(producer: QueueProducer, client: Recorded) -> None:
    producer.send_async(b"x", {"h": b"v"}, max_deliveries=3, ttl=1.5)
    ((topic, value, _, more),) = client.records
    assert (topic, value) == ("topic", b"x")
    assert more["headers"] == [("h", b"v"), (MAX_DELIVERIES, b"3"), (TTL, b"1500")]


def test_a_delayed_message_is_a_start_without_a_record(producer: QueueProducer, client: Recorded) -> None:
    sent = producer.send_async(b"x", {"h": b"v"}, delay=1.2345, max_deliveries=3, ttl=1.5)
    ((topic, value, key, more),) = client.records
    assert (topic, key, more["partition"]) == ("markers", b"q", 5)
    start = decode(value)
    assert (start.type, start.key, start.value, start.headers) == (MarkerType.START, b"q", b"x", (("h", b"v"),))
    assert start.redeliver_after_ms == 1_235, "never early"
    assert start.undelivered
    assert (start.max_deliveries, start.ttl_ms) == (3, 1_500)
    assert start.message_id == start.origin_id
    assert start.message_id.partition == -1
    client.answer()
    assert sent.result(0) == start.message_id


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"delay": -1}, "a delay of 0 to"),
        ({"delay": 43_201}, "a delay of 0 to"),
        ({"max_deliveries": 0}, "max_deliveries is a number from 1"),
        ({"ttl": 0}, "a ttl of 0.001 to"),
    ],
)
def test_an_invalid_limit_is_refused(
    producer: QueueProducer, client: Recorded, limits: dict[str, Any], why: str
) -> None:
    with pytest.raises(MessageInvalid, match=why):
        producer.send_async(b"x", **limits)
    assert client.records == []
