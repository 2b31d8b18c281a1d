"""The job of each program of docs/permissions.md, done by a user with ACLs: to start, to work, and to take over."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition

from tests.capture.captured import CapturedOrders, captured
from tests.election.watching import Watched
from tests.faults.guarded import LOGIN
from tests.faults.permission_table import Right, rights
from tests.processes import eventually
from tests.queue.topics import QueueTopics
from tests.relay.dispatched import Place as Dispatched
from tests.relay.locked_place import LockedPlace
from tests.relay.relaying import Place, Relaying
from tests.tail.tailing import TailPlace
from tests.tracker.tracked import start, write
from thresher.db import TableName
from thresher.devstack.broker import CLIENTS
from thresher.devstack.stack import Stack
from thresher.election.neli import Neli
from thresher.election.settings import ElectionSettings
from thresher.inbox import create_inbox
from thresher.inbox.consuming import consume
from thresher.kafka.admin import Admin
from thresher.kafka.unreadable_batch import Unreadable
from thresher.outbox import Message
from thresher.publisher import Publisher
from thresher.queue import QueueService
from thresher.queue.configuration import configured
from thresher.queue.hand_off.stepping_over import Stuck, step_over
from thresher.queue.inspection import stats
from thresher.tracker.dead import dead_letters, drop, replay
from thresher.tracker.tracker import Tracker

PATIENCE_SECONDS = 90.0
_GRACE_SECONDS = 0.5


class Waits(AssertionError):
    """The program goes on, and says that something waits."""


@dataclass
class Scene:
    """What one job works on, made by an administrator; each part once it is asked for."""

    stack: Stack
    dsn: str
    prefix: str
    # Whether jobs include what programs do with the rights in brackets.
    whole: bool = True
    # What the names in the table stand for.
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def login(self) -> dict[str, Any]:
        return {**LOGIN, "bootstrap.servers": self.stack.kafka.bootstrap_of(CLIENTS)}

    def known(self, **names: str) -> None:
        self.names |= {f"<{name}>": (found,) for name, found in names.items()}

    @cached_property
    def queue(self) -> str:
        return uuid.uuid4().hex[:12]

    @cached_property
    def queues(self) -> QueueTopics:
        made = QueueTopics(self.stack.kafka.bootstrap, partitions=1, marker_partitions=1)
        config = made.config
        self.known(messages=config.message_topic, markers=config.marker_topic, id=self.queue)
        self.names["the four topics"] = (
            config.message_topic, config.marker_topic, config.queues_topic, config.dead_topic,
        )  # fmt: skip
        return made

    def queue_keys(self, **more: Any) -> dict[str, Any]:
        given = self.queues.config.model_dump(by_alias=True, exclude_unset=True)
        return {**given, "bootstrap-servers": self.stack.kafka.bootstrap_of(CLIENTS), "kafka": LOGIN, **more}

    def send_by_another(self, size: int = 5) -> None:
        other = Producer({**self.queues.eyes, "compression.type": "zstd", "message.max.bytes": 10_000_000})
        other.produce(self.queues.config.message_topic, bytes(size), self.queue.encode())
        assert other.flush(30) == 0

    def topics(self) -> set[str]:
        """Return the names of the scene's topics."""
        named = {name for names in self.names.values() for name in names}
        of_markers = {f"{name}.queues" for name in self.names.get("<markers>", ())}
        of_messages = {f"{name}.dead" for name in self.names.get("<messages>", ())}
        of_name = {f"{name}{end}" for name in self.names.get("<name>", ()) for end in (".progress", ".tail.progress")}
        return named | of_markers | of_messages | of_name

    def fetch(self, topic: str) -> None:
        """Read from a topic as the account. Raises `KafkaException`."""
        consumer = Consumer({**self.login, "group.id": "unused", "log_level": 0})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            message = consumer.poll(30)
            if message is not None and (error := message.error()) is not None:
                raise KafkaException(error)
        finally:
            consumer.close()

    def begin(self, transactional_id: str) -> None:
        """Begin to use a transactional id as the account. Raises `KafkaException`."""
        Producer({**self.login, "transactional.id": transactional_id, "log_level": 0}).init_transactions(30)

    def commit(self, group: str) -> None:
        """Set an offset of a group as the account. Raises `KafkaException`."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition("any", 0, 0)])
        client = Admin.of(self.login).client
        for future in client.alter_consumer_group_offsets([asked], request_timeout=30).values():
            future.result()

    def letter(self) -> None:
        """Have a dead letter of a message that is too large."""
        self.send_by_another(3_000_000)
        with QueueService({**self.queue_keys(), "bootstrap-servers": self.stack.kafka.bootstrap, "kafka": {}}) as it:
            consumer = it.queue(self.queue).consumer()
            consumer.receive_batch(1, 0.1)
            eventually(lambda: len(dead_letters(self.queues.config)) == 1, PATIENCE_SECONDS)
        self.queues.configure(self.queues.config.message_topic, max_message_bytes="4000000")


Job = Callable[[Scene], Callable[[], None]]


def produce(scene: Scene) -> Callable[[], None]:
    topics = scene.queues

    def work() -> None:
        with QueueService(scene.queue_keys()) as service, service.queue(scene.queue).producer() as producer:
            producer.send(b"hello")
        assert topics.ends()[0] == 1

    return work


def delay(scene: Scene) -> Callable[[], None]:
    scene.queues  # noqa: B018 - makes it

    def work() -> None:
        with QueueService(scene.queue_keys()) as service, service.queue(scene.queue).producer() as producer:
            producer.send(b"later", delay=0.1)

    return work


def receive(scene: Scene, handoff: str = "exactly-once") -> Callable[[], None]:
    scene.send_by_another()
    scene.send_by_another(3_000_000)

    def work() -> None:
        # Twice: the second consumer takes over.
        for _ in range(2):
            with QueueService(scene.queue_keys(handoff=handoff)) as service:
                consumer = service.queue(scene.queue).consumer()
                (message,) = consumer.receive_batch(1, PATIENCE_SECONDS)
                message.ack(sync=True)
                eventually(lambda: len(dead_letters(scene.queues.config)) == 1, PATIENCE_SECONDS)
            scene.send_by_another()

    return work


def track(scene: Scene, election: str = "none") -> Callable[[], None]:
    topics = scene.queues
    write(topics, start(1, 200), start(2, 200, delivery_count=100))

    def work() -> None:
        for count in (1, 2):
            tracker = Tracker({**scene.queue_keys(), "redelivery-tracker": {"status": "off", "election": election}})
            tracker.start()
            try:
                _redelivered(tracker, topics, count)
            finally:
                tracker.stop()
            write(topics, start(3, 200))

    return work


def _redelivered(tracker: Tracker, topics: QueueTopics, count: int) -> None:
    def met() -> bool:
        # Raises the error that has ended it.
        tracker.wait(0.01)
        return topics.ends()[0] >= count

    eventually(met, PATIENCE_SECONDS)


def elect_tracker(scene: Scene) -> Callable[[], None]:
    leader = f"{scene.queues.config.marker_topic}.tracker.leader"
    return _elect(scene, leader, leader)


def list_letters(scene: Scene) -> Callable[[], None]:
    scene.letter()

    def work() -> None:
        config = configured(scene.queue_keys())
        assert len(dead_letters(config)) == 1
        assert drop(config, lambda _: True) == 1

    return work


def replay_letters(scene: Scene) -> Callable[[], None]:
    scene.letter()

    def work() -> None:
        assert replay(configured(scene.queue_keys()), lambda _: True) == 1

    return work


def look(scene: Scene) -> Callable[[], None]:
    receive(scene)
    with QueueService({**scene.queue_keys(), "bootstrap-servers": scene.stack.kafka.bootstrap, "kafka": {}}) as it:
        (message,) = it.queue(scene.queue).consumer().receive_batch(1, PATIENCE_SECONDS)
        message.ack(sync=True)

    def work() -> None:
        config, queue = configured(scene.queue_keys()), scene.queue.encode()
        (ours,) = stats(config, [queue]).queues
        if ours.problem:
            raise Waits(ours.problem)
        offset = scene.queues.offsets(queue)[0]
        step_over(config, Stuck(queue=queue, partition=0, offset=offset, batch=Unreadable(first=offset, after=offset)))

    return work


def _relayed(at: Any, relaying: Relaying, count: int) -> None:
    def sent() -> bool:
        alarms = relaying.relay.alarms if relaying.error is None else {}
        if alarms:
            raise Waits(str(alarms))
        return bool(at.pending() == 0)

    relaying.until(sent, PATIENCE_SECONDS)
    at.read(count)


def _trim(scene: Scene, progress: str) -> None:
    """Remove old progress, as the watch of a leader does now and then: it only notes an error."""
    if not scene.whole:
        return
    # A client that is dropped never answers.
    admin = Admin.of(scene.login)
    for future in admin.client.delete_records([TopicPartition(progress, 0, 1)], request_timeout=30).values():
        future.result(60)


def relay(scene: Scene) -> Callable[[], None]:
    at = Place(scene.stack, scene.dsn, scene.prefix)
    scene.known(name=at.settings().name)
    scene.names["each topic of its rows"] = (at.topic,)

    def work() -> None:
        for shards in (1, 2):
            at.stash(Message(topic=at.topic, key="k", value="v"))
            with at.relaying(kafka=scene.login, shards=shards) as relaying:
                _relayed(at, relaying, shards)
        _trim(scene, f"{at.settings().name}.progress")

    return work


def tail(scene: Scene) -> Callable[[], None]:
    at = TailPlace(scene.stack, scene.dsn, scene.prefix)
    scene.known(name=at.settings().name)
    scene.names["each topic of its rows"] = (at.topic,)

    def work() -> None:
        try:
            for count in (1, 2):
                at.stash(Message(topic=at.topic, key="k", value="v"))
                with at.tailing(kafka=scene.login) as tailing:
                    _tailed(at, tailing, count)
            _trim(scene, f"{at.settings().name}.tail.progress")
        finally:
            at.drop_slot()

    return work


def _tailed(at: TailPlace, tailing: Relaying, count: int) -> None:
    def sent() -> bool:
        if tailing.error is None and tailing.relay.alarms:
            raise Waits(str(tailing.relay.alarms))
        return sum(each.records for each in at.admin.topics(at.topic)) >= count

    tailing.until(sent, PATIENCE_SECONDS)


def lock(scene: Scene) -> Callable[[], None]:
    at = LockedPlace(scene.stack, scene.dsn, scene.prefix)
    scene.known(name=at.settings().name)
    scene.names["each topic of its rows"] = (at.topic,)

    def work() -> None:
        for threads in (1, 2):
            at.stash(Message(topic=at.topic, key="k", value="v"))
            with at.backend(kafka=scene.login, threads=threads) as backend:
                at.until_sent(backend)

    return work


def elect(scene: Scene) -> Callable[[], None]:
    topic, group = f"{scene.prefix}leader", f"{scene.prefix}group"
    scene.names |= {"the election's topic": (topic,), "the election's group": (group,)}
    return _elect(scene, topic, group)


def _elect(scene: Scene, topic: str, group: str) -> Callable[[], None]:
    settings = ElectionSettings(grace_seconds=_GRACE_SECONDS)

    def work() -> None:
        for _ in range(2):
            with Watched(Neli(topic=topic, group=group, kafka=scene.login, settings=settings)) as one:
                eventually(lambda: one.leads or one.error, PATIENCE_SECONDS)
                if one.error is not None:
                    raise one.error

    return work


def capture(scene: Scene) -> Callable[[], None]:
    orders = CapturedOrders(
        scene.stack.kafka.bootstrap_of(CLIENTS), scene.dsn, direct=scene.stack.kafka.bootstrap, partitions=1,
        kafka=scene.login,
    )  # fmt: skip
    scene.names["each captured topic"] = (orders.topic,)

    def work() -> None:
        for count in (1, 2):
            orders.publish((f"k{count}", count))
            with captured(orders):
                orders.await_rows({f"k{n}": n for n in range(1, count + 1)})

    return work


def dispatch(scene: Scene) -> Callable[[], None]:
    at = Dispatched(scene.stack, scene.dsn)
    scene.names["each topic of its messages"] = (at.topic,)

    def work() -> None:
        with at.dispatcher(kafka=scene.login) as dispatcher:
            done = dispatcher.clear(at.stash())
            if done.sent != 1:
                raise Waits(str(done))

    return work


def publish(scene: Scene) -> Callable[[], None]:
    topic = f"{scene.prefix}published"
    Admin(scene.stack.kafka.bootstrap).create_topic(topic)
    scene.names["each topic of its messages"] = (topic,)

    def work() -> None:
        with Publisher(kafka=scene.login, backend="kafka") as publisher:
            publisher.publish_list([Message(topic=topic, key="k", value="v")])

    return work


def enter(scene: Scene) -> Callable[[], None]:
    topic, group = f"{scene.prefix}consumed", f"{scene.prefix}group"
    Admin(scene.stack.kafka.bootstrap).create_topic(topic)
    scene.names |= {"each consumed topic": (topic,), "its consumer group": (group,)}
    other = Producer({"bootstrap.servers": scene.stack.kafka.bootstrap})
    with psycopg.connect(scene.dsn) as connection:
        create_inbox(connection, TableName(table="thresher_inbox"))

    def work() -> None:
        for number in range(2):
            other.produce(topic, b"v", headers=[("event-id", str(number).encode())])
            assert other.flush(30) == 0
            assert _entered(scene, topic, group) == [b"v"]

    return work


def _entered(scene: Scene, topic: str, group: str) -> list[bytes]:
    """Consume one record with an inbox, and return its value."""
    seen: list[bytes] = []
    own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**scene.login, **own})
    consumer.subscribe([topic])
    try:
        consume(
            consumer,
            lambda: psycopg.connect(scene.dsn),
            lambda _, record: seen.append(bytes(record.value or b"")),
            stop=lambda: bool(seen),
        )
    finally:
        consumer.close()
    return seen


@dataclass(frozen=True)
class Role:
    """A program of the table, perhaps with a condition, the programs whose rights it needs too, and its job."""

    program: str
    job: Job
    also: tuple[str, ...] = ()

    def rights(self) -> list[Right]:
        """Return its rights, and those that it needs too."""
        return [right for right in RIGHTS if right.program in {self.program, *self.also}]

    def spare(self) -> list[Right]:
        """Return those of its rights without which it works."""
        return [right for right in RIGHTS if right.program == self.program and right.spare]


RIGHTS = rights()
_DEAD, _CHANGE = "`queue dead`", "`queue dead`, to change"
ROLES = [
    Role("queue producer", produce),
    Role("queue producer, for delays", delay),
    Role("queue consumer", receive),
    Role("tracker", track),
    Role("tracker, with `election: neli`", elect_tracker),
    Role(_DEAD, list_letters, also=(_CHANGE,)),
    Role(_CHANGE, list_letters, also=(_DEAD,)),
    Role("`queue dead`, to replay", replay_letters, also=(_DEAD, _CHANGE)),
    Role("`queue stats`", look),
    Role("`queue step-over`", look),
    Role("relay", relay),
    Role("tail", tail),
    Role("relay, with `election: neli`", elect),
    Role("tail, with `election: neli`", elect),
    Role("capture, with `election: neli`", elect),
    Role("capture", capture),
    Role("dispatcher", dispatch),
    Role("publisher", publish),
    Role("inbox's `consume`", enter),
]
