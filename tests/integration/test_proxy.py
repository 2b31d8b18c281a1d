import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.proxied import PROXIED
from tests.processes import eventually
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.testing.proxy import Api, Cut, Delay, Drop, Frame, Hold, KafkaProxy, Pass, ProxyProblem, Verdict


@pytest.fixture
def proxied(stack: Stack) -> tuple[Stack, int]:
    """Return the shared stack, and the advertised port of its listener. Each test runs its own proxy on that port."""
    (listener,) = stack.kafka.options.listeners
    return stack, listener.advertised_ports[0]


@pytest.fixture
def direct(proxied: tuple[Stack, int]) -> str:
    return proxied[0].kafka.bootstrap


@pytest.fixture
def proxy(proxied: tuple[Stack, int]) -> Iterator[KafkaProxy]:
    stack, port = proxied
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=port) as listening:
        yield listening
    assert not [thread for thread in threading.enumerate() if thread.name == "kafka-proxy"]
    assert ports.is_free(port)


@pytest.fixture
def topic(direct: str, topic_prefix: str) -> str:
    name = f"{topic_prefix}records"
    Admin(direct).create_topic(name)
    return name


def transactional(proxy: KafkaProxy, topic: str, **config: Any) -> Producer:
    producer = Producer({"bootstrap.servers": proxy.address, "transactional.id": topic, "log_level": 0, **config})
    producer.init_transactions(60)
    return producer


def idempotent(proxy: KafkaProxy, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": proxy.address, "enable.idempotence": True, "log_level": 0, **config})


def deliver(producer: Producer, topic: str, value: bytes) -> None:
    errors: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]


# Only a failing test waits so long.
PATIENCE = 60.0


def read_committed(bootstrap: str, topic: str, seconds: float = PATIENCE) -> list[bytes | None]:
    """Return the values that a `read_committed` consumer reads from the start to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            error = message.error() if message is not None else None
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return values
            if message is not None and error is None:
                values.append(message.value())
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} in {seconds} s, after {values}")


def question(correlation: int) -> bytes:
    """Return an ApiVersions request. Its answer is the same for every client."""
    body = Api.API_VERSIONS.to_bytes(2) + bytes(2) + correlation.to_bytes(4) + b"\xff\xff"
    return len(body).to_bytes(4) + body


class Line:
    """A raw client connection, without a Kafka client."""

    def __init__(self, proxy: KafkaProxy) -> None:
        self._socket = socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)

    def ask(self, *correlations: int) -> None:
        self.say(b"".join(map(question, correlations)))

    def say(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def hear(self, seconds: float = PATIENCE) -> int | None:
        """Return the next answer's correlation id; None when the connection was closed. Raises `TimeoutError`."""
        self._socket.settimeout(seconds)
        try:
            head = self._exactly(4)
        except ConnectionError:
            return None
        return int.from_bytes(self._exactly(int.from_bytes(head))[:4])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def hears_nothing(self, seconds: float = 0.5) -> bool:
        with contextlib.suppress(TimeoutError):
            self.hear(seconds)
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def apart(direct: str) -> Iterator[KafkaProxy]:
    """Start a proxy on a port that no client knows, so that it sees only the test's own requests."""
    with KafkaProxy(direct) as listening:
        yield listening


@pytest.fixture
def line(apart: KafkaProxy) -> Iterator[Line]:
    opened = Line(apart)
    yield opened
    opened.close()


def test_a_transaction_passes_only_through_the_proxy(proxy: KafkaProxy, topic: str, direct: str) -> None:
    producer = transactional(proxy, topic)
    producer.begin_transaction()
    deliver(producer, topic, b"x" * 3_000)
    producer.commit_transaction(60)
    # The broker answers before it has written the transaction markers.
    eventually(lambda: read_committed(direct, topic) == [b"x" * 3_000], PATIENCE)
    for api in (Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN):
        assert proxy.requests[api] == proxy.answers[api] >= 1, api
    assert proxy.requests[Api.END_TXN] == 1
    known = producer.list_topics(topic, timeout=60).brokers.values()
    assert [(broker.host, broker.port) for broker in known] == [("127.0.0.1", proxy.port)]


def test_a_held_answer_hides_a_commit_from_the_client(proxy: KafkaProxy, topic: str, direct: str) -> None:
    producer = transactional(proxy, topic)
    rule = proxy.on_answer(Api.END_TXN, Hold(), times=1)
    producer.begin_transaction()
    deliver(producer, topic, b"x")
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(2)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert caught.value.args[0].retriable()
    rule.wait()
    eventually(lambda: read_committed(direct, topic) == [b"x"], PATIENCE)
    rule.release()
    producer.commit_transaction(60)
    assert proxy.requests[Api.END_TXN] == 1


def test_a_held_request_has_no_effect_yet(proxy: KafkaProxy, topic: str, direct: str) -> None:
    producer = transactional(proxy, topic)
    rule = proxy.on_request(Api.END_TXN, Hold(), times=1)
    producer.begin_transaction()
    deliver(producer, topic, b"x")
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        producer.commit_transaction(1)
    rule.wait()
    assert read_committed(direct, topic) == []
    rule.release()
    producer.commit_transaction(60)
    eventually(lambda: read_committed(direct, topic) == [b"x"], PATIENCE)


def test_a_held_request_reaches_the_broker_after_its_client_left(proxy: KafkaProxy, topic: str, direct: str) -> None:
    producer = transactional(proxy, topic)
    rule = proxy.on_request(Api.END_TXN, Hold(), times=1)
    producer.begin_transaction()
    deliver(producer, topic, b"x")
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        producer.commit_transaction(0.5)
    rule.wait()
    del producer
    assert read_committed(direct, topic) == []
    rule.release()
    eventually(lambda: read_committed(direct, topic) == [b"x"], PATIENCE)


def test_a_held_commit_can_hit_the_clients_next_transaction(proxy: KafkaProxy, topic: str, direct: str) -> None:
    producer = transactional(proxy, topic)
    rule = proxy.on_request(Api.END_TXN, Hold(hang_up=True), times=1)
    producer.begin_transaction()
    deliver(producer, topic, b"x")
    producer.commit_transaction(60)
    assert proxy.requests[Api.END_TXN] >= 2
    producer.begin_transaction()
    deliver(producer, topic, b"y")
    answered = proxy.answers[Api.END_TXN]
    rule.release()
    eventually(lambda: proxy.answers[Api.END_TXN] == answered + 1, PATIENCE)
    # The held request belongs to the transaction before; the broker cannot tell, and commits this one.
    eventually(lambda: read_committed(direct, topic) == [b"x", b"y"], PATIENCE)


def test_a_client_survives_a_cut_while_producing(proxy: KafkaProxy, topic: str, direct: str) -> None:
    request = proxy.on_request(Api.PRODUCE, Cut(), times=1)
    # When the answer is cut off, the broker has the record, and the client sends it again.
    answer = proxy.on_answer(Api.PRODUCE, Cut(), times=1)
    producer = idempotent(proxy)
    deliver(producer, topic, b"x")
    assert (request.matched, answer.matched) == (1, 1)
    assert (proxy.requests[Api.PRODUCE], proxy.answers[Api.PRODUCE]) == (3, 2)
    assert read_committed(direct, topic) == [b"x"]


def test_a_dropped_answer_makes_the_client_ask_again(proxy: KafkaProxy, topic: str, direct: str) -> None:
    rule = proxy.on_answer(Api.PRODUCE, Drop(), times=1)
    producer = idempotent(proxy, **{"socket.timeout.ms": 1_000})
    deliver(producer, topic, b"x")
    assert rule.matched == 1
    assert proxy.answers[Api.PRODUCE] >= 2
    assert read_committed(direct, topic) == [b"x"]


def test_a_delayed_answer_comes_late(proxy: KafkaProxy, topic: str) -> None:
    producer = idempotent(proxy)
    deliver(producer, topic, b"at once")
    proxy.on_answer(Api.PRODUCE, Delay(seconds=1.0), times=1)
    begin = time.monotonic()
    deliver(producer, topic, b"late")
    assert time.monotonic() - begin >= 1.0
    assert proxy.requests[Api.PRODUCE] == 2


def test_a_client_survives_a_pause_and_lost_connections(proxy: KafkaProxy, topic: str, direct: str) -> None:
    producer = idempotent(proxy)
    deliver(producer, topic, b"1")
    proxy.pause()
    producer.produce(topic, b"2")
    assert producer.flush(1) == 1
    assert proxy.requests[Api.PRODUCE] == 1
    assert read_committed(direct, topic) == [b"1"]
    proxy.resume()
    assert producer.flush(60) == 0
    before = proxy.connections
    proxy.cut_all()
    deliver(producer, topic, b"3")
    assert proxy.connections > before
    assert read_committed(direct, topic) == [b"1", b"2", b"3"]


def test_a_dropped_frame_leaves_the_connection_as_it_is(apart: KafkaProxy, line: Line) -> None:
    apart.on_answer(Api.API_VERSIONS, Drop(), times=1)
    apart.on_request(Api.API_VERSIONS, Drop(), times=1)
    line.ask(1, 2, 3)
    assert line.hear() == 3
    assert (apart.requests[Api.API_VERSIONS], apart.answers[Api.API_VERSIONS], apart.connections) == (3, 2, 1)


def test_no_frame_overtakes_a_held_one(apart: KafkaProxy, line: Line) -> None:
    rule = apart.on_answer(Api.API_VERSIONS, Hold(), times=1)
    line.ask(1, 2)
    rule.wait()
    assert line.hears_nothing()
    rule.release()
    assert (line.hear(), line.hear()) == (1, 2)


def test_a_release_may_drop_or_cut_and_ends_the_rule(apart: KafkaProxy, line: Line) -> None:
    rule = apart.on_answer(None, Hold())
    line.ask(1)
    rule.wait()
    rule.release(Drop())
    line.ask(2)
    assert line.hear() == 2
    again = apart.on_answer(None, Hold())
    line.ask(3)
    again.wait()
    again.release(Cut())
    assert line.hear() is None
    assert (rule.matched, again.matched) == (1, 1)


def test_a_pause_stops_both_directions_and_new_connections(apart: KafkaProxy, line: Line) -> None:
    rule = apart.on_answer(Api.API_VERSIONS, Hold(), times=1)
    line.ask(1)
    rule.wait()
    apart.pause()
    rule.release()
    other = Line(apart)
    other.ask(7)
    assert line.hears_nothing()
    assert other.hears_nothing()
    apart.resume()
    assert (line.hear(), other.hear()) == (1, 7)
    other.close()


def test_cut_all_ends_every_connection_with_its_held_frames(apart: KafkaProxy, line: Line) -> None:
    rule = apart.on_request(Api.API_VERSIONS, Hold(), times=1)
    line.ask(1)
    rule.wait()
    apart.cut_all()
    rule.release()
    assert line.hear() is None
    after = Line(apart)
    after.ask(2)
    assert after.hear() == 2
    assert apart.answers[Api.API_VERSIONS] == 1
    after.close()


def test_a_function_sees_the_facts_of_a_frame_and_decides(apart: KafkaProxy, line: Line) -> None:
    seen: list[Frame] = []

    def odd_ones(frame: Frame) -> Verdict | None:
        seen.append(frame)
        # A call to the proxy from its own thread must not deadlock.
        assert apart.requests[Api.API_VERSIONS] == len(seen)
        return Drop() if frame.correlation % 2 else None

    chosen = apart.on_request(Api.API_VERSIONS, odd_ones)
    rest = apart.on_request(None, Pass())
    line.ask(1, 2, 3, 4)
    assert (line.hear(), line.hear()) == (2, 4)
    assert (chosen.matched, rest.matched) == (2, 2)
    assert [frame.raw for frame in seen] == [question(number) for number in (1, 2, 3, 4)]
    facts = {(frame.is_answer, frame.api, frame.version, frame.connection) for frame in seen}
    assert facts == {(False, Api.API_VERSIONS, 0, 1)}


def hangs_up_on(proxy: KafkaProxy, raw: bytes) -> None:
    line = Line(proxy)
    line.say(raw)
    assert line.hear() is None
    line.close()


def test_an_action_that_fails_fails_the_test(direct: str) -> None:
    def fail(frame: Frame) -> Verdict:
        raise LookupError("nothing to say")

    proxy = KafkaProxy(direct)
    proxy.on_answer(None, fail)
    proxy.start()
    hangs_up_on(proxy, question(1))
    with pytest.raises(LookupError, match="nothing to say"):
        proxy.close()


def test_bytes_that_are_no_kafka_frame_are_reported(direct: str) -> None:
    proxy = KafkaProxy(direct)
    proxy.start()
    hangs_up_on(proxy, b"\x16\x03\x01\x02\x00\x01")
    with pytest.raises(ProxyProblem, match="TLS"):
        proxy.close()


def test_clients_of_a_stopped_broker_are_disconnected() -> None:
    # A port that is bound here, and on which no process listens.
    with socket.socket() as down:
        down.bind(("127.0.0.1", 0))
        with KafkaProxy(f"127.0.0.1:{down.getsockname()[1]}") as proxy:
            line = Line(proxy)
            assert line.hear() is None
            line.close()


def test_an_unmatched_rule_says_so(apart: KafkaProxy) -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        apart.on_request(Api.FETCH, Hold()).wait(timeout_seconds=0.1)


def test_the_end_of_the_proxy_ends_held_and_paused_connections(direct: str) -> None:
    with KafkaProxy(direct) as proxy:
        rule = proxy.on_request(None, Hold())
        lines = [Line(proxy), Line(proxy)]
        for line in lines:
            line.ask(1)
        rule.wait(2)
        proxy.pause()
    assert [line.hear() for line in lines] == [None, None]
    rule.release()
    assert proxy.requests[Api.API_VERSIONS] == 2
    for line in lines:
        line.close()


def test_a_client_connecting_while_the_proxy_ends_leaves_nothing_open() -> None:
    done = threading.Event()

    def knock(port: int) -> None:
        while not done.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE):
                pass

    with socket.create_server(("127.0.0.1", 0)) as upstream, ThreadPoolExecutor(2) as pool:
        for _ in range(12):
            proxy = KafkaProxy(f"127.0.0.1:{upstream.getsockname()[1]}")
            with proxy:
                done.clear()
                knocking = [pool.submit(knock, proxy.port) for _ in range(2)]
                while proxy.connections < 20:
                    time.sleep(0.001)
            done.set()
            for each in knocking:
                each.result()
    # A socket that was left open raises a warning, and warnings are errors.
    gc.collect()
