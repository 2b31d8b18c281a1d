"""The backends on real servers: messages are published in order, or the caller gets an error."""

import os
import signal
import threading
import uuid
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.committed_records import committed_records
from thresher.db import TableName
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import ConsumerRecord
from thresher.outbox import Message, NotInTransaction, create_schema
from thresher.publisher import Publisher, PublishFailed, PublishUnknown
from thresher.testing.proxy import Api, Cut, Drop, Hold, KafkaProxy

MESSAGES = 500


class Topic:
    """The topic of one test, and its records."""

    def __init__(self, stack: Stack, **config: str) -> None:
        self.name = f"publisher-{uuid.uuid4().hex[:8]}"
        self.kafka = {"bootstrap.servers": stack.kafka.bootstrap}
        Admin.of(self.kafka).create_topic(self.name, partitions=3, config=config)

    def records(self) -> list[ConsumerRecord]:
        return committed_records(self.name, self.kafka)

    def messages(self, count: int = MESSAGES) -> list[Message]:
        return [
            Message(topic=self.name, key=f"k{number % 7}", value=str(number), headers={"n": str(number)})
            for number in range(count)
        ]

    def limit(self, most_bytes: int) -> None:
        """Lower the size of the records that the topic takes, and wait until its broker refuses larger ones."""
        entry = ConfigEntry("max.message.bytes", str(most_bytes), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[entry])
        client = AdminClient(dict(self.kafka))
        for future in client.incremental_alter_configs([resource]).values():
            future.result()
        with Publisher(kafka={**self.kafka, "compression.type": "none"}, backend="kafka") as probe:
            for _ in range(100):
                try:
                    probe.publish(Message(topic=self.name, key="probe", value="x" * 2 * most_bytes))
                except PublishFailed:
                    return
        raise AssertionError(f"{self.name} takes records of any size")

    def in_order(self) -> bool:
        """Tell whether all messages arrived once and in order per key."""
        by_key: dict[Any, list[int]] = {}
        for record in self.records():
            by_key.setdefault(record.key, []).append(int(record.value or b""))
        numbers = sorted(number for each in by_key.values() for number in each)
        return numbers == list(range(MESSAGES)) and all(each == sorted(each) for each in by_key.values())


@pytest.fixture
def topic(stack: Stack) -> Topic:
    return Topic(stack)


def test_kafka_holds_the_messages_when_publish_returns(topic: Topic) -> None:
    with Publisher(kafka=topic.kafka, backend="kafka") as publisher:
        publisher.publish_list(topic.messages())
        assert topic.in_order()
        publisher.publish_list([])
    (record,) = [each for each in topic.records() if each.value == b"3"]
    assert (record.key, record.headers) == (b"k3", (("n", b"3"),))


def test_kafka_async_holds_the_messages_after_a_flush(topic: Topic) -> None:
    with Publisher(kafka=topic.kafka, backend="kafka_async") as publisher:
        publisher.publish_list(topic.messages())
        assert publisher.flush(30)
        assert topic.in_order()


def test_a_refused_message_is_reported_and_the_others_are_sent(stack: Stack) -> None:
    small = Topic(stack, **{"max.message.bytes": "1000"})
    # In other partitions: the broker accepts or refuses a record batch as a whole.
    fine = Message(topic=small.name, key="k0", value="0", partition=0)
    large = Message(topic=small.name, key="k1", value=bytes(range(256)) * 40, partition=1)
    with Publisher(kafka={**small.kafka, "compression.type": "none"}, backend="kafka") as publisher:
        # A new producer takes half a second for its first messages.
        publisher.publish(fine)
        with pytest.raises(PublishFailed) as caught:
            publisher.publish_list([fine, large])
        assert not isinstance(caught.value, PublishUnknown)
        ((message, why),) = caught.value.refused
        assert (message.key, "size" in why.lower()) == (b"k1", True)
    with Publisher(kafka={**small.kafka, "compression.type": "none"}, backend="kafka_async") as unwatched:
        unwatched.publish(large)
        assert not unwatched.flush(30), "a failure whose future nobody awaits is reported"
    assert [record.value for record in small.records()] == [b"0", b"0"]


def test_the_outbox_holds_the_messages_after_the_callers_commit(topic: Topic, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        create_schema(connection, TableName(table="outbox"))
        connection.commit()
        publisher = Publisher(backend="db")
        publisher.publish_list(topic.messages(), connection)
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        publisher.publish_list(topic.messages(), connection)
        connection.commit()
        found = connection.execute("SELECT kafka_value, kafka_key FROM outbox ORDER BY id").fetchall()
        assert found[:2] == [(b"0", b"k0"), (b"1", b"k1")]
        assert len(found) == MESSAGES
        connection.rollback()
        connection.autocommit = True
        with pytest.raises(NotInTransaction):
            publisher.publish_list(topic.messages(1), connection)


def test_a_message_without_an_answer_is_unknown_not_refused(stack: Stack, shared_proxy: KafkaProxy) -> None:
    topic = Topic(stack)
    away = {"bootstrap.servers": shared_proxy.address, "message.timeout.ms": 3_000}
    with Publisher(kafka=away, backend="kafka") as publisher:
        publisher.publish(Message(topic=topic.name, key="k", value="1"))
        rule = shared_proxy.on_answer(Api.PRODUCE, Drop())
        with pytest.raises(PublishUnknown) as caught:
            publisher.publish(Message(topic=topic.name, key="k", value="2"))
        rule.release()
    assert caught.value.refused == ()
    ((message, _),) = caught.value.unknown
    assert message.value == b"2"
    assert {record.value for record in topic.records()} == {b"1", b"2"}, "the broker has it"


def test_a_message_refused_at_a_second_try_is_unknown_not_refused(stack: Stack, shared_proxy: KafkaProxy) -> None:
    """The broker has it since the first try, whose answer is lost. Meanwhile the topic's limit becomes smaller."""
    topic = Topic(stack)
    away = {"bootstrap.servers": shared_proxy.address, "compression.type": "none"}
    caught: list[BaseException] = []

    def publish() -> None:
        try:
            publisher.publish(Message(topic=topic.name, key="k", value="x" * 5_000))
        except PublishFailed as error:
            caught.append(error)

    with Publisher(kafka=away, backend="kafka") as publisher:
        rule = shared_proxy.on_answer(Api.PRODUCE, Hold(), times=1)
        sending = threading.Thread(target=publish)
        sending.start()
        rule.wait()
        topic.limit(1_000)
        rule.release(Cut())
        sending.join(60)
    (error,) = caught
    assert isinstance(error, PublishUnknown)
    assert error.refused == ()
    assert len(error.unknown) == 1
    assert [record.value for record in topic.records() if record.key == b"k"] == [b"x" * 5_000], "the broker has it"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_publishes_while_threads_of_its_parent_do(topic: Topic) -> None:
    publisher = Publisher(kafka=topic.kafka, backend="kafka_async")
    ended = threading.Event()

    def publish() -> None:
        while not ended.is_set():
            publisher.publish(Message(topic=topic.name, key="k", value="parent"))

    threads = [threading.Thread(target=publish) for _ in range(24)]
    for each in threads:
        each.start()
    statuses = []
    for _ in range(5):
        child = os.fork()
        if not child:
            # Ends the child if it hangs.
            signal.alarm(30)
            publisher.publish(Message(topic=topic.name, key="k", value="child"))
            os._exit(0 if publisher.flush(20) else 1)
        statuses.append(os.waitpid(child, 0)[1])
    ended.set()
    for each in threads:
        each.join()
    publisher.close()
    assert statuses == [0] * 5
    assert [record.value for record in topic.records()].count(b"child") == 5


@pytest.mark.parametrize("kind", ["kafka", "kafka_async"])
def test_an_unreachable_broker_is_reported_within_the_time_limit(kind: str) -> None:
    away = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 1_500}
    with Publisher(kafka=away, backend=kind) as publisher:
        if kind == "kafka":
            with pytest.raises(PublishFailed, match=r"whether 1 messages were sent is unknown.*: t, key"):
                publisher.publish(Message(topic="t", key="k", value="v"))
        else:
            publisher.publish(Message(topic="t", key="k", value="v"))
            assert not publisher.flush(30)
