"""A partition that cannot be written holds only its own topic: before a transaction, and within one."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.faults import stalling
from tests.processes import eventually
from tests.relay.relaying import Place, Relaying
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.broker import KafkaOptions
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

# Seen: 39 s for a whole test.
GO_ON_SECONDS = 130.0
VICTIM = 3
pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Stack]:
    with Stack(kafka=KafkaOptions(nodes=3, properties={"auto.create.topics.enable": "false"})) as stack:
        yield stack


class Rows:
    """Numbered rows of a place, written alternately to two topics."""

    def __init__(self, place: Place, other: str) -> None:
        self.place, self.other = place, other
        self.written = {place.topic: 0, other: 0}

    def more(self, *topics: str) -> None:
        """Write ten rows of each topic, over a few keys."""
        for topic in topics:
            numbers = range(self.written[topic], self.written[topic] + 10)
            self.place.stash(*(Message(topic=topic, key=f"k{n % 3}", value=str(n)) for n in numbers))
            self.written[topic] += 10

    def pending(self, topic: str) -> int:
        return int(self.place.sql("SELECT count(*) FROM outbox WHERE kafka_topic = %s", topic)[0][0])

    def require_all_once(self) -> None:
        """Check that each row was sent once, and the rows of a key in order."""
        assert self.place.dead() == []
        for topic, count in self.written.items():
            sent: dict[bytes, list[int]] = {}
            for message in self.place.read(count, topic):
                sent.setdefault(bytes(message.key() or b""), []).append(int(message.value() or b""))
            assert all(numbers == sorted(set(numbers)) for numbers in sent.values()), sent
            assert sum(map(len, sent.values())) == count


def created(stack: Stack, name: str, replicas: list[int], config: dict[str, str]) -> str:
    client = AdminClient({"bootstrap.servers": stack.kafka.bootstrap, "log_level": 0})
    topic = NewTopic(name, num_partitions=1, replica_assignment=[replicas], config=config)
    for made in client.create_topics([topic]).values():
        made.result()
    return name


def others_go_on(relay: Relaying, rows: Rows, waiting: str, why: str) -> None:
    """Check that the other topic's rows leave while this topic's rows wait, under an alarm with the reason."""
    for _ in range(2):
        rows.more(rows.place.topic, waiting)
        relay.until(lambda: rows.pending(rows.place.topic) == 0, GO_ON_SECONDS)
    relay.until(lambda: why in relay.relay.alarms.get(waiting, ""), GO_ON_SECONDS)
    assert rows.pending(waiting) >= 10


@pytest.mark.parametrize("delivery", ["exactly-once", pytest.param("at-least-once", marks=pytest.mark.soak)])
def test_too_few_in_sync_replicas_stop_only_their_own_topic(cluster: Stack, spark: Session, delivery: str) -> None:
    prefix = f"narrow-{delivery[0]}-"
    place = Place(cluster, cluster.postgres.create_database(prefix.strip("-").replace("-", "_")), prefix)
    narrow = created(cluster, f"{prefix}narrow", [1, 2, VICTIM], {"min.insync.replicas": "3"})
    rows = Rows(place, narrow)
    with place.relaying(shards=1, delivery=Delivery(delivery), limits={"grace_seconds": 1.0}) as relay:
        rows.more(place.topic, narrow)
        relay.until(lambda: place.pending() == 0, GO_ON_SECONDS)
        cluster.kafka.nodes[VICTIM].kill()
        try:
            # Some rows are in flight before the relay notices.
            others_go_on(relay, rows, narrow, "2 in-sync replicas and needs 3")
        finally:
            cluster.kafka.start_node(VICTIM)
        relay.until(lambda: place.pending() == 0 and not relay.relay.alarms, GO_ON_SECONDS)
    rows.require_all_once()


def nobody_leads(place: Place, topic: str) -> bool:
    try:
        facts = place.admin.topic(topic)
    except KafkaException:
        return False  # a cluster that has just lost a node may answer late
    return facts is None or bool(facts.leaderless)


def test_a_leader_lost_before_commit_stops_only_its_topic(cluster: Stack, spark: Session) -> None:
    place = Place(cluster, cluster.postgres.create_database("solo"), "solo-")
    solo = created(cluster, "solo-solo", [VICTIM], {"min.insync.replicas": "1"})
    rows = Rows(place, solo)
    with place.relaying(shards=1, hook=stalling.HOOK, limits={"grace_seconds": 1.0}) as relay:
        rows.more(place.topic, solo)
        relay.until(lambda: place.pending() == 0, GO_ON_SECONDS)
        try:
            with stalling.stalled({0: CrashPoint.BEFORE_COMMIT}, lambda: once(rows, solo)):
                cluster.kafka.nodes[VICTIM].kill()
                eventually(lambda: nobody_leads(place, solo), GO_ON_SECONDS)
            others_go_on(relay, rows, solo, "nobody leads its partition 0")
        finally:
            cluster.kafka.start_node(VICTIM)
        relay.until(lambda: place.pending() == 0 and not relay.relay.alarms, GO_ON_SECONDS)
    rows.require_all_once()


def once(rows: Rows, solo: str) -> None:
    """Write rows of both topics, unless rows wait already."""
    if rows.place.pending() == 0:
        rows.more(rows.place.topic, solo)
