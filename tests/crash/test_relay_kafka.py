"""Faults of a broker and actions of its administrator: the relay goes on, waits, or ends with the reason."""

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.faults import stalling
from tests.faults.guarded import LOGIN, Guard, guarded
from tests.faults.proxied import PROXIED
from tests.processes import eventually
from tests.relay.relaying import Place, Relaying
from tests.servers import create_topic
from thresher.cli.adopt import adopt
from thresher.delivery.crash_points import CrashPoint
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.progress_topic import topic
from thresher.delivery.progress_topic.topic import KEPT
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.kafka.problem import BrokerRefused
from thresher.kafka.producer_problem import ProducerRefused
from thresher.outbox import Message
from thresher.relay.leader import watch
from thresher.spark.session.session import Session
from thresher.testing.proxy import Api, Cut, Hold, KafkaProxy

# The broker forgets an idle producer after 5 s, and ends an expired transaction within half a second.
FORGETFUL = {
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
# Seen: 1 to 5 s for every wait without a comment of its own, including starts of a relay or of the broker.
PATIENCE_SECONDS = 60.0
_numbers = itertools.count(1)
pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker for these tests alone: with an authorizer, and behind a proxy."""

    stack: Stack
    proxy: KafkaProxy
    guard: Guard

    @property
    def kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.proxy.address, **LOGIN}


@contextlib.contextmanager
def broker_with(properties: Mapping[str, str]) -> Iterator[Broker]:
    port = ports.free_port()
    with (
        Stack(kafka=guarded(port, properties=properties)) as stack,
        KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=port) as proxy,
    ):
        guard = Guard(stack.kafka.bootstrap)
        guard.admit("t")
        yield Broker(stack=stack, proxy=proxy, guard=guard)


@pytest.fixture(scope="module")
def broker(spark: Session) -> Iterator[Broker]:
    with broker_with({}) as made:
        yield made


@pytest.fixture
def forgetful(spark: Session) -> Iterator[Broker]:
    """A broker with these short limits, apart from the other one, whose producers may idle on a slow machine."""
    with broker_with(FORGETFUL) as made:
        yield made


class GuardedPlace(Place):
    """A place whose relays connect through the proxy and need ACLs."""

    def __init__(self, broker: Broker) -> None:
        number = next(_numbers)
        super().__init__(broker.stack, broker.stack.postgres.create_database(f"test_{number}"), f"t{number}-")
        self.broker = broker
        self.stored = 0
        self._client = AdminClient({"bootstrap.servers": broker.stack.kafka.bootstrap, "log_level": 0})

    def relaying(self, **changes: Any) -> Relaying:
        return super().relaying(**{"kafka": self.broker.kafka, "shards": 1, **changes})

    def more(self, count: int, topic: str | None = None, **parts: Any) -> None:
        """Store rows with rising numbers, over a few keys."""
        numbers = range(self.stored, self.stored + count)
        self.stored += count
        self.stash(*(Message(topic=topic or self.topic, key=f"k{n % 5}", value=str(n), **parts) for n in numbers))

    def more_if_none(self, count: int) -> None:
        if self.pending() == 0:
            self.more(count)

    def read(self, count: int, *topics: str, seconds: float = PATIENCE_SECONDS) -> list[Any]:
        return super().read(count, *topics, seconds=seconds)

    def all_there(self, relaying: Relaying, count: int, *topics: str) -> None:
        """Check that all rows leave the outbox, and that each is read once, in order."""
        relaying.until(lambda: self.pending() == 0, PATIENCE_SECONDS)
        in_order(self.read(count, *topics))

    def delete(self, topic: str) -> None:
        """Delete a topic; when this returns, the broker accepts no record for it."""
        self.admin.delete_topics([topic])
        eventually(lambda: self.admin.topic(topic) is None, PATIENCE_SECONDS)

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; the broker knows it when this returns."""
        create_topic(self.admin, topic, partitions, config)

    def open(self) -> bool:
        """Whether a transaction is open on the topic: neither its producer nor the broker has ended it."""
        ends = [self._ends(level) for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)]
        return ends[0] != ends[1]

    def _ends(self, level: IsolationLevel) -> dict[TopicPartition, int]:
        asked = {TopicPartition(self.topic, partition): OffsetSpec.latest() for partition in range(3)}
        found = self._client.list_offsets(asked, isolation_level=level)
        return {place: future.result().offset for place, future in found.items()}

    def forgotten(self) -> set[str]:
        """Return our transactional ids whose last record in `__transaction_state` is a tombstone."""
        consumer = Consumer(
            {"bootstrap.servers": self.stack.kafka.bootstrap, "group.id": "tests", "enable.partition.eof": True}
        )
        words: dict[str, bool] = {}
        try:
            partitions = consumer.list_topics("__transaction_state", 15).topics["__transaction_state"].partitions
            consumer.assign([TopicPartition("__transaction_state", partition, 0) for partition in partitions])
            ends = 0
            while ends < len(partitions):
                for message in consumer.consume(1000, 1.0):
                    if message.error() is not None:
                        ends += 1
                    elif (name := bytes(message.key() or b"")[4:].decode()).startswith(self.prefix):
                        words[name] = message.value() is None
        finally:
            consumer.close()
        return {name for name, gone in words.items() if gone}


@pytest.fixture
def at(broker: Broker) -> GuardedPlace:
    return GuardedPlace(broker)


def in_order(messages: Sequence[Any]) -> None:
    """Check that no number comes twice, and that numbers rise within each key and partition."""
    numbers = [int(message.value()) for message in messages]
    assert len(numbers) == len(set(numbers))
    streams: dict[tuple[str, int, bytes], list[int]] = {}
    for message, number in zip(messages, numbers, strict=True):
        streams.setdefault((message.topic(), message.partition(), message.key()), []).append(number)
    for mine in streams.values():
        assert mine == sorted(mine)


def troubles(relaying: Relaying) -> list[float]:
    """Return how many errors each shard has counted: each cost it a producer."""
    return [
        sum(count for name, count in shard.counts.items() if name.startswith("errors.")) for shard in relaying.shards
    ]


def test_recovery_decides_a_commit_that_a_broker_kill_interrupted(at: GuardedPlace, broker: Broker) -> None:
    node = broker.stack.kafka.nodes[1]
    count = 0
    with at.relaying(limits={"batch_rows": 50}) as relaying:
        for on in (broker.proxy.on_request, broker.proxy.on_answer):
            at.more(50)
            count += 50
            at.all_there(relaying, count)
            rule = on(Api.END_TXN, Hold(), times=1)
            at.more(200)
            count += 200
            rule.wait(timeout_seconds=PATIENCE_SECONDS)
            # In the first round the commit did not arrive; in the second it did, and its answer was lost.
            node.kill()
            rule.release(Cut())
            broker.stack.kafka.start_node(1)
            at.all_there(relaying, count)
        relaying.until(lambda: relaying.total("recovered") > 0, PATIENCE_SECONDS)
    assert at.dead() == []


def test_expired_transactions_and_producer_ids_repeat_nothing(
    forgetful: Broker,
) -> None:
    at = GuardedPlace(forgetful)
    with at.relaying(shards=2, hook=stalling.HOOK) as relaying:
        relaying.until(lambda: relaying.up, PATIENCE_SECONDS)
        with stalling.stalled({0: CrashPoint.FLUSHED, 1: CrashPoint.BEFORE_COMMIT}, lambda: at.more_if_none(100)):
            assert at.open()
            # Seen: 15.3 s, the producers' transaction time-out.
            eventually(lambda: not at.open(), 85)
            assert at.pending() == 100
            at.read(0)
        at.all_there(relaying, 100)
        before = troubles(relaying)
        assert all(before), relaying.shards
        # Seen: 6 s.
        eventually(lambda: at.forgotten() == {f"{at.prefix}relay-0", f"{at.prefix}relay-1"}, PATIENCE_SECONDS)
        at.more(100)
        at.all_there(relaying, 200)
        after = troubles(relaying)
        assert all(now > then for now, then in zip(after, before, strict=True)), relaying.shards
    assert at.dead() == []


def test_a_deleted_topic_is_awaited_and_added_partitions_are_used(at: GuardedPlace) -> None:
    other = f"{at.prefix}other"
    at.admin.create_topic(other)
    # A long grace: however long the test takes, no row of the topic is declared dead.
    with at.relaying(limits={"grace_seconds": 600.0}) as relaying:
        at.more(20)
        at.more(20, other)
        at.all_there(relaying, 40, at.topic, other)
        # The rows come after the deletion: records in the old topic would be deleted with it.
        at.delete(at.topic)
        at.more(100)
        at.more(20, other)
        relaying.until(lambda: at.topic in relaying.relay.alarms, PATIENCE_SECONDS)
        # Other topics go on.
        in_order(at.read(40, other))
        relaying.until(lambda: at.pending() == 100, PATIENCE_SECONDS)
        at.create(at.topic, partitions=2)
        at.all_there(relaying, 100)
        relaying.until(lambda: not relaying.relay.alarms, PATIENCE_SECONDS)
        # Replaced so quickly that the relay never sees the topic missing.
        at.delete(at.topic)
        at.create(at.topic, partitions=2)
        at.more(100)
        at.all_there(relaying, 100)
        at.admin.widen_topic(at.topic, 5)
        # A row must not name a partition that the broker does not know yet.
        eventually(lambda: (facts := at.admin.topic(at.topic)) and facts.partitions == 5, PATIENCE_SECONDS)
        at.more(10, partition=4)
        at.all_there(relaying, 110)
        assert sum(message.partition() == 4 for message in at.read(110)) == 10
    assert at.dead() == []


def test_rows_wait_for_acls_and_missing_relay_acls_are_named(at: GuardedPlace, broker: Broker) -> None:
    secret = f"{at.prefix}secret"
    at.admin.create_topic(secret)
    broker.guard.deny_topic(secret)
    at.more(30, secret)
    at.more(30)
    with at.relaying(limits={"grace_seconds": 600.0}) as relaying:
        in_order(at.read(30))
        relaying.until(lambda: secret in relaying.relay.alarms, PATIENCE_SECONDS)
        at.more(1)
        at.read(31)
        broker.guard.allow_topic(secret)
        at.all_there(relaying, 30, secret)
        relaying.until(lambda: not relaying.relay.alarms, PATIENCE_SECONDS)
        # Now the right is taken away while the relay works.
        broker.guard.deny_topic(secret)
        for _ in range(5):
            at.more(20, secret)
            at.more(20)
        relaying.until(lambda: secret in relaying.relay.alarms, PATIENCE_SECONDS)
        in_order(at.read(131))
        at.read(30, secret)
        broker.guard.allow_topic(secret)
        at.all_there(relaying, 130, secret)
        relaying.until(lambda: not relaying.relay.alarms, PATIENCE_SECONDS)
        assert not relaying.errors(), relaying.shards
        broker.guard.deny_topic(f"{at.prefix}relay.progress")
        at.more(20)
        silenced = relaying.ended()
    assert isinstance(silenced, BrokerRefused)
    assert "grant the relay Write on its progress topic" in str(silenced)
    broker.guard.allow_topic(f"{at.prefix}relay.progress")
    with at.relaying() as relaying:
        at.all_there(relaying, 151)
        broker.guard.deny_producers(f"{at.prefix}relay-")
        at.more(20)
        refused = relaying.ended()
    assert isinstance(refused, ProducerRefused)
    assert refused.exit_code == 4
    assert "grant it Write and Describe on its transactional ids" in str(refused)
    assert at.pending() == 20
    broker.guard.allow_producers(f"{at.prefix}relay-")
    with at.relaying() as relaying:
        at.all_there(relaying, 171)
    assert at.dead() == []
    with at.relaying(kafka={**broker.kafka, "sasl.password": "wrong"}) as relaying:
        error = relaying.ended()
    assert isinstance(error, BrokerRefused)
    assert error.exit_code == 4


def test_rows_above_a_lowered_size_limit_are_set_aside(at: GuardedPlace, broker: Broker) -> None:
    large = Message(topic=at.topic, key="k0", value=os.urandom(30_000))
    # A long batch time: a thousand rows are one batch, even in a shard that was slow before.
    with at.relaying(producer={"compression.type": "none"}, limits={"batch_seconds": 60.0}) as relaying:
        at.more(100)
        at.stash(large)
        relaying.until(lambda: at.pending() == 0, PATIENCE_SECONDS)
        at.read(101)
        broker.guard.limit(at.topic, 20_000)
        at.more(30)
        at.stash(large)
        at.more(30)
        relaying.until(lambda: at.pending() == 0, PATIENCE_SECONDS)
        assert [row[1] for row in at.dead()] == ["too-large"]
        broker.guard.limit(at.topic, None)
        at.stash(large)
        at.more(100)
        relaying.until(lambda: at.pending() == 0, PATIENCE_SECONDS)
        assert not relaying.errors(), relaying.shards
        # A limit on the progress topic: the relay has to put fewer rows into a transaction.
        broker.guard.limit(f"{at.prefix}relay.progress", 19_000)
        # A thousand dead-letter reasons do not fit into one progress record.
        at.sql("INSERT INTO outbox (kafka_topic, kafka_key) SELECT 'not a topic', 'k0' FROM generate_series(1, 1000)")
        relaying.until(lambda: at.pending() == 0, PATIENCE_SECONDS)
        # The refusal comes before the commit, or during it: then the outcome of the commit is unknown.
        refused = relaying.total("errors.commit_unknown") + relaying.total("errors.producer_problem")
        assert refused > 0, relaying.shards
    found = at.read(262)
    in_order([message for message in found if len(message.value() or b"") < 10])
    assert [row[1] for row in at.dead()] == ["too-large", *["malformed"] * 1000]


def test_a_deleted_or_replaced_progress_topic_ends_the_relay(at: GuardedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    # The driver checks the topic more often than usual.
    monkeypatch.setattr(watch, "_TOPIC_SECONDS", 0.5)
    name = at.settings().name
    progress = f"{name}.progress"
    with at.relaying() as relaying, pytest.MonkeyPatch.context() as patch:
        at.more(50)
        at.all_there(relaying, 50)
        # A shorter wait until a topic counts as gone, but not at the start, when a new topic may be unknown to a
        # broker.
        patch.setattr(topic, "_SETTLING_SECONDS", 1.0)
        at.delete(progress)
        at.more(50)
        gone = relaying.ended()
    assert isinstance(gone, ForeignProgress)
    assert f"{progress} is gone" in str(gone)
    assert f"thresher adopt {name}" in str(gone)
    # A topic that is created again has another topic id.
    at.create(progress, config=KEPT)
    with at.relaying() as relaying:
        replaced = relaying.ended()
    assert isinstance(replaced, ForeignProgress)
    assert "was replaced by another one" in str(replaced)
    assert at.pending() == 50
    at.read(50)
    adopt(name, ds=at.dsn)
    with at.relaying() as relaying:
        at.all_there(relaying, 100)
        # Replaced so quickly that it is never seen missing, while the shard is idle.
        at.delete(progress)
        at.create(progress)
        error = relaying.ended()
    assert isinstance(error, ForeignProgress)
    assert f"thresher adopt {name}" in str(error)
    assert error.exit_code == 4


def test_a_shard_does_not_recover_from_a_replaced_progress_topic(
    at: GuardedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver's own check would notice the replacement too, but later.
    monkeypatch.setattr(watch, "_TOPIC_SECONDS", 600.0)
    progress = f"{at.settings().name}.progress"
    # A long batch time: rows that are stored together are sent together, even by a shard that was slow before.
    with at.relaying(hook=stalling.HOOK, limits={"batch_seconds": 60.0}) as relaying:
        relaying.until(lambda: relaying.up, PATIENCE_SECONDS)
        with stalling.stalled({0: CrashPoint.COMMITTED}, lambda: at.more_if_none(50)):
            # The rows are published and not settled, and only the old topic holds that progress record.
            at.read(at.stored)
            assert at.pending() == 50
            at.delete(progress)
            at.create(progress)
            os.kill(relaying.pid(0), signal.SIGKILL)
        error = relaying.ended()
    assert isinstance(error, ForeignProgress)
    at.read(at.stored)
