"""Queues whose broker restarts, is silent, or whose answers are lost: no message is lost, none is started twice."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from thresher.devstack.stack import Stack
from thresher.queue import MessageId, QueueClosed, QueueService
from thresher.testing.proxy import Action, Api, Cut, Delay, Drop, Hold, KafkaProxy, Rule

QUEUE = b"jobs"
# Seen: 12 s after a broker that was silent for 30 s.
PATIENCE_SECONDS = 90.0
QUICK = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}


@pytest.fixture
def topics(proxied: tuple[Stack, int], proxy: KafkaProxy) -> QueueTopics:
    return QueueTopics(proxy.address, direct=proxied[0].kafka.bootstrap, partitions=2, consumer=QUICK)


@dataclass
class Receiver:
    """A consumer in a thread that acks each message."""

    received: list[MessageId] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


@contextmanager
def receiving(topics: QueueTopics, bootstrap: str | None = None) -> Iterator[Receiver]:
    """Receive and ack while the context lasts; `bootstrap` replaces the topics' own broker address."""
    receiver = Receiver()
    keys = topics.config.model_dump(by_alias=True)
    with QueueService({**keys, "bootstrap-servers": bootstrap or keys["bootstrap-servers"]}) as service:
        consumer = service.queue(QUEUE).consumer()

        def receive() -> None:
            try:
                for message in consumer:
                    receiver.received.append(message.id)
                    message.ack()
            except QueueClosed:
                pass
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                receiver.errors.append(error)

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            consumer.close()
            thread.join(60)
    assert receiver.errors == []


def send(topics: QueueTopics, count: int) -> set[MessageId]:
    """Send without the proxy, so that faults hit only the consumer."""
    keys = topics.config.model_dump(by_alias=True)
    direct = {"bootstrap-servers": topics.eyes["bootstrap.servers"], "send-timeout": 120_000}
    with QueueService({**keys, **direct}) as service:
        producer = service.queue(QUEUE).producer()
        sent = [producer.send_async(b"%d" % number) for number in range(count)]
        return {each.result(60) for each in sent}


def wait_for(receiver: Receiver, sent: set[MessageId]) -> None:
    eventually(
        lambda: set(receiver.received) >= sent, PATIENCE_SECONDS, lambda: f"{len(receiver.received)}, {receiver.errors}"
    )


def keeps_its_promise(topics: QueueTopics, sent: set[MessageId], received: list[MessageId]) -> None:
    assert topics.verdict(QUEUE, sent) == []
    assert len(received) == len(set(received))
    assert topics.ended(QUEUE) == sent == set(received)


Fault = Callable[[KafkaProxy], Rule]


def _lost(api: Api, action: Action, *, answer: bool) -> Fault:
    return lambda proxy: (proxy.on_answer if answer else proxy.on_request)(api, action, times=1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(_lost(Api.END_TXN, Drop(), answer=True), id="the commit's answer"),
        pytest.param(_lost(Api.END_TXN, Drop(), answer=False), id="the commit"),
        pytest.param(_lost(Api.END_TXN, Cut(), answer=True), id="the connection after the commit"),
        pytest.param(_lost(Api.TXN_OFFSET_COMMIT, Drop(), answer=True), id="the offsets' answer"),
        pytest.param(_lost(Api.ADD_PARTITIONS_TO_TXN, Cut(), answer=True), id="the connection after the opening"),
    ],
)
def test_the_outcome_behind_a_lost_answer_is_not_guessed(topics: QueueTopics, proxy: KafkaProxy, fault: Fault) -> None:
    sent = send(topics, 5)
    with receiving(topics) as receiver:
        wait_for(receiver, sent)
        rule = fault(proxy)
        sent |= send(topics, 50)
        wait_for(receiver, sent)
        assert rule.matched == 1, "the fault was met"
    keeps_its_promise(topics, sent, receiver.received)


def test_a_commit_in_doubt_is_dropped_once_a_successor_passes(topics: QueueTopics, proxy: KafkaProxy) -> None:
    sent = send(topics, 5)
    with receiving(topics) as loser:
        wait_for(loser, sent)
        # The commit reaches the broker. Its answer, and all later requests of the consumer, do not pass.
        rule = proxy.on_answer(Api.END_TXN, Hold(), times=1)
        doubtful = send(topics, 40)
        rule.wait()
        started = set(topics.started(QUEUE)) & doubtful
        proxy.pause()
        with receiving(topics, topics.eyes["bootstrap.servers"]) as successor:
            # Messages in every partition, so that no group offset is still that of the transaction in doubt.
            late = send(topics, 40)
            wait_for(successor, late)
            before = set(loser.received)
            rule.release(Cut())
            proxy.resume()
            more = send(topics, 20)
            eventually(lambda: set(loser.received) | set(successor.received) >= more, PATIENCE_SECONDS)
        received = [*loser.received, *successor.received]
        # No consumer delivers the messages that were started then: the tracker redelivers them.
        assert started, "the commit reached the broker"
        assert started.isdisjoint(set(loser.received) - before)
    sent |= doubtful | late | more
    assert topics.verdict(QUEUE, sent) == []
    assert len(received) == len(set(received))
    assert sent - set(received) <= doubtful


def test_thirty_seconds_of_broker_silence_cost_only_time(proxied: tuple[Stack, int], topics: QueueTopics) -> None:
    sent = send(topics, 20)
    with receiving(topics) as receiver:
        wait_for(receiver, sent)
        (node,) = proxied[0].kafka.nodes.values()
        sending = threading.Thread(target=lambda: sent.update(send(topics, 60)))
        sending.start()
        node.send(signal.SIGSTOP)
        time.sleep(30)
        node.send(signal.SIGCONT)
        sending.join(PATIENCE_SECONDS)
        assert len(sent) == 80
        wait_for(receiver, sent)
    keeps_its_promise(topics, sent, receiver.received)


def test_a_broker_restart_costs_only_time(proxied: tuple[Stack, int], topics: QueueTopics) -> None:
    stack, _ = proxied
    sent = send(topics, 20)
    with receiving(topics) as receiver:
        wait_for(receiver, sent)
        sent |= send(topics, 200)
        (number,) = stack.kafka.nodes
        stack.kafka.nodes[number].kill()
        stack.kafka.start_node(number)
        sent |= send(topics, 60)
        wait_for(receiver, sent)
    keeps_its_promise(topics, sent, receiver.received)


@pytest.mark.parametrize("queue", [b"jobs", b"q"])
def test_added_partitions_are_used(topics: QueueTopics, queue: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # The markers of one queue go to an old partition, those of the other to an added one.
    monkeypatch.setattr(sys.modules[__name__], "QUEUE", queue)
    sent = send(topics, 20)
    with receiving(topics) as receiver:
        wait_for(receiver, sent)
        topics.admin.widen_topic(topics.config.message_topic, 6)
        topics.admin.widen_topic(topics.config.marker_topic, 5)
        eventually(lambda: len(topics.ends()) == 6, PATIENCE_SECONDS)
        sent |= send(topics, 200)
        assert {each.partition for each in sent} == set(range(6))
        wait_for(receiver, sent)
    keeps_its_promise(topics, sent, receiver.received)


def test_a_hand_off_succeeds_with_a_slow_broker(topics: QueueTopics, proxy: KafkaProxy) -> None:
    # Longer than the client's request time-out, after which it repeats a request.
    proxy.on_answer(Api.TXN_OFFSET_COMMIT, Delay(seconds=0.6))
    sent = send(topics, 5)
    with receiving(topics) as receiver:
        wait_for(receiver, sent)
        sent |= send(topics, 50)
        wait_for(receiver, sent)
    keeps_its_promise(topics, sent, receiver.received)
