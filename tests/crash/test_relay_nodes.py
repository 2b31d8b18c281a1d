"""A relay on a cluster with failing nodes: unreachable coordinators, leaders that move, a killed node."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.faults.proxied import proxied_broker, proxies_of
from tests.faults.wire import Wire
from tests.processes import eventually
from tests.relay.load import Load
from tests.relay.relaying import Place, Relaying
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session
from thresher.testing.proxy import Api, Cut, Frame, KafkaProxy, Verdict

SHARDS = 4
# Seen: 8 s from the kill of a node until all shards sent rows again.
MOVED_SECONDS = 150.0
COORDINATING = (Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Three nodes, each behind a proxy of its own."""

    stack: Stack
    proxies: dict[int, KafkaProxy]

    @property
    def bootstrap(self) -> str:
        return ",".join(proxy.address for proxy in self.proxies.values())

    def leaders(self, *topics: str) -> dict[tuple[str, int], int]:
        """Return the node that leads each partition, also of internal topics; -1 if none does."""
        client = AdminClient({"bootstrap.servers": self.stack.kafka.bootstrap, "log_level": 0})
        found = client.list_topics(timeout=15).topics
        return {
            (topic, number): partition.leader
            for topic in topics
            for number, partition in found[topic].partitions.items()
        }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ways = tuple(ports.free_port() for _ in range(3))
    # A returning node soon leads its former partitions again.
    soon = {"leader.imbalance.check.interval.seconds": "1", "leader.imbalance.per.broker.percentage": "0"}
    with (
        Stack(kafka=proxied_broker(*ways, properties=soon)) as stack,
        proxies_of(stack.kafka, ways) as proxies,
    ):
        yield Cluster(stack=stack, proxies=proxies)


def relayed(relay: Relaying) -> list[float]:
    return [shard.counts.get("relayed", 0) for shard in relay.shards]


def all_move(relay: Relaying, *shards: int) -> None:
    """Wait until each of the shards has sent more rows."""
    before = relayed(relay)
    relay.until(
        lambda: all(after > before[shard] for shard, after in enumerate(relayed(relay)) if shard in shards),
        MOVED_SECONDS,
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_lost_and_moved_coordinators_and_leaders_cost_only_time(
    cluster: Cluster, spark: Session, tmp_path: Path
) -> None:
    place = Place(cluster.stack, cluster.stack.postgres.create_database("nodes"), "nodes-")
    name = place.settings().name
    wires = {node: Wire(proxy, name) for node, proxy in cluster.proxies.items()}
    coordinators: dict[int, int] = {}
    for node, wire in wires.items():
        for shard in range(SHARDS):

            def note(_: Frame, node: int = node, shard: int = shard) -> Verdict | None:
                coordinators[shard] = node
                return None

            wire.request(Api.END_TXN, shard, note)
    everybody = range(SHARDS)
    with (
        place.relaying(shards=SHARDS, kafka={"bootstrap.servers": cluster.bootstrap}) as relay,
        Load(place, tmp_path) as load,
    ):
        relay.until(lambda: len(relayed(relay)) == SHARDS and all(relayed(relay)), MOVED_SECONDS)
        # The coordinator is unreachable, while its node still accepts records.
        victim = coordinators[0]
        cut_off = [shard for shard in everybody if coordinators[shard] == victim]
        others = [shard for shard in everybody if shard not in cut_off]
        assert others, coordinators
        rules = [cluster.proxies[victim].on_request(api, Cut()) for api in COORDINATING]
        relay.until(lambda: all(relay.shards[shard].restarts for shard in cut_off), MOVED_SECONDS)
        # Twice: counts arrive with heartbeats, so the first change may be from before the fault.
        all_move(relay, *others)
        all_move(relay, *others)
        stuck = [relayed(relay)[shard] for shard in cut_off]
        all_move(relay, *others)
        assert [relayed(relay)[shard] for shard in cut_off] == stuck
        for rule in rules:
            rule.release()
        all_move(relay, *everybody)
        # The node is gone: its leaders and coordinators move to other nodes.
        cluster.stack.kafka.nodes[victim].kill()
        topics = (place.topic, f"{name}.progress", "__transaction_state")
        eventually(lambda: victim not in cluster.leaders(*topics).values(), MOVED_SECONDS)
        all_move(relay, *everybody)
        eventually(lambda: victim not in coordinators.values(), MOVED_SECONDS)
        # The node returns, and leaders and coordinators move back while the relay works.
        cluster.stack.kafka.start_node(victim)
        eventually(lambda: victim in cluster.leaders(*topics).values(), MOVED_SECONDS)
        all_move(relay, *everybody)
        load.end()
    load.require_clean(500)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_topic_without_a_leader_holds_only_its_own_rows(cluster: Cluster, spark: Session) -> None:
    place = Place(cluster.stack, cluster.stack.postgres.create_database("alone"), "alone-")
    client = AdminClient({"bootstrap.servers": cluster.stack.kafka.bootstrap})
    (made,) = client.create_topics([NewTopic("alone-once", num_partitions=2, replica_assignment=[[1], [3]])]).values()
    made.result()
    kafka = {"bootstrap.servers": cluster.bootstrap}
    with place.relaying(shards=1, kafka=kafka, limits={"grace_seconds": 1.0}) as relay:
        place.stash(*(Message(topic=topic, key="k", value="1") for topic in (place.topic, "alone-once")))
        relay.until(lambda: place.pending() == 0, MOVED_SECONDS)
        cluster.stack.kafka.nodes[3].kill()
        eventually(lambda: -1 in cluster.leaders("alone-once").values(), MOVED_SECONDS)
        place.stash(*(Message(topic="alone-once", key=f"{n}", value="2") for n in range(20)))
        relay.until(lambda: "alone-once" in relay.relay.alarms, MOVED_SECONDS)
        place.stash(*(Message(topic=place.topic, key=f"{n}", value="2") for n in range(20)))
        relay.until(lambda: place.pending() == 20, MOVED_SECONDS)
        restarts = relay.shards[0].restarts
        place.stash(*(Message(topic=place.topic, key=f"{n}", value="3") for n in range(20)))
        relay.until(lambda: place.pending() == 20, MOVED_SECONDS)
        assert relay.shards[0].restarts == restarts
        cluster.stack.kafka.start_node(3)
        relay.until(lambda: place.pending() == 0, MOVED_SECONDS)
        assert place.dead() == []
    assert len(place.read(41)) == 41
    assert len(place.read(21, "alone-once")) == 21
