"""Queues on a broker with authentication: refused credentials end a consumer, a silent broker is awaited."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.faults.guarded import LOGIN, Guard
from tests.faults.proxied import PROXIED
from tests.in_process import thresher
from tests.queue.topics import QueueTopics
from thresher.devstack.broker import CLIENTS
from thresher.devstack.stack import Stack
from thresher.kafka import admin as administration
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerRefused
from thresher.queue import QueueService
from thresher.testing.proxy import KafkaProxy

# Only a failing test waits so long.
PATIENCE_SECONDS = 60.0


@pytest.fixture
def queue(stack: Stack) -> str:
    """Return a queue whose group and transactional ids the account may use."""
    name = uuid.uuid4().hex[:12]
    Guard(stack.kafka.bootstrap).admit(f"kafka-mq-{name}")
    return name


@pytest.fixture
def topics(stack: Stack) -> QueueTopics:
    made = QueueTopics(stack.kafka.bootstrap)
    Guard(stack.kafka.bootstrap).admit(made.config.message_topic)
    Guard(stack.kafka.bootstrap).admit(made.config.marker_topic)
    return made


@pytest.fixture
def keys(stack: Stack, topics: QueueTopics) -> dict[str, Any]:
    """Return the configuration with the account's credentials."""
    given = topics.config.model_dump(by_alias=True, exclude_unset=True)
    return {**given, "bootstrap-servers": stack.kafka.bootstrap_of(CLIENTS), "kafka": LOGIN}


@pytest.fixture
def service(keys: dict[str, Any]) -> Iterator[QueueService]:
    with QueueService(keys) as made:
        yield made


def test_the_right_credentials_are_accepted(service: QueueService, queue: str) -> None:
    service.queue(queue).producer().send(b"hello")
    message = service.queue(queue).consumer().receive(PATIENCE_SECONDS)
    assert message is not None
    message.ack(sync=True)


def test_refused_credentials_are_an_error_of_every_receive(keys: dict[str, Any], queue: str) -> None:
    with QueueService({**keys, "kafka": {**LOGIN, "sasl.password": "wrong"}}) as service:
        consumer = service.queue(queue).consumer()
        for _ in range(2):
            with pytest.raises(BrokerRefused, match="mend the credentials") as raised:
                consumer.receive(PATIENCE_SECONDS)
            assert "wrong" not in str(raised.value)


def test_a_broker_that_starts_late_is_awaited(stack: Stack, topics: QueueTopics, queue: str) -> None:
    (listener,) = stack.kafka.options.listeners
    port = listener.advertised_ports[0]
    keys = topics.config.model_dump(by_alias=True, exclude_unset=True)
    with QueueService(keys) as service:
        service.queue(queue).producer().send(b"hello")
    with QueueService({**keys, "bootstrap-servers": f"127.0.0.1:{port}"}) as service:
        consumer = service.queue(queue).consumer()
        assert consumer.receive(1.0) is None
        with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=port):
            message = consumer.receive(PATIENCE_SECONDS)
            assert message is not None
            message.ack(sync=True)


def test_a_forbidden_group_hides_no_other_queue(
    keys: dict[str, Any], topics: QueueTopics, queue: str, tmp_path: Path
) -> None:
    # The account has no permission for this queue's group.
    hidden = f"hidden-{queue}"
    with QueueService(topics.config) as service:
        for each in (queue, hidden):
            service.queue(each).producer().send(b"hello")
            consumer = service.queue(each).consumer()
            assert consumer.receive(PATIENCE_SECONDS) is not None
    (tmp_path / "queues.yaml").write_text(json.dumps(keys))
    command = ["queue", "stats", "-c", str(tmp_path / "queues.yaml")]
    for named in ([], [queue, hidden]):
        answer = thresher([*command, *named, "--json"])
        assert answer.returncode == 4
        shown = {each["queue"]: each for each in json.loads(answer.stdout)["queues"]}
        assert (shown[queue]["members"], shown[queue]["in_progress"], shown[queue]["problem"]) == (0, 1, None)
        assert shown[queue]["lag_records"] is not None
        assert (shown[hidden]["members"], shown[hidden]["lag_records"], shown[hidden]["in_progress"]) == (None, None, 1)
        assert "mend the credentials, or grant the permission" in shown[hidden]["problem"]
    told = thresher(command)
    assert told.returncode == 4
    assert f"kafka-mq-{hidden}" in told.stdout.decode() + told.stderr.decode()


def test_credentials_accepted_later_are_not_reported_as_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    # The client notices a lost broker after a timeout, which is shorter here.
    monkeypatch.setattr(administration, "_REQUEST_SECONDS", 4.0)
    (listener,) = stack.kafka.options.listeners
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=listener.advertised_ports[0]) as proxy:
        admin = Admin(proxy.address)
        admin._errors.append(KafkaError(KafkaError._AUTHENTICATION, "refused, some hours ago"))
        admin.require_answer()
    with pytest.raises(KafkaException) as raised:
        admin.require_answer()
    assert raised.value.args[0].code() != KafkaError._AUTHENTICATION
