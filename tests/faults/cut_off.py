"""A cluster of three nodes, the first of which can be cut off from the others while clients still reach it.

Connections to its replication port and to all controllers pass through proxies; those of clients do not. While it is
cut off, the first node still answers as the leader of its partitions, with the end offsets that it knew.
"""

import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thresher.devstack import ports
from thresher.devstack.broker import CONTROLLER, MAIN, KafkaOptions, Listener
from thresher.devstack.stack import Stack
from thresher.testing.proxy import Api, Cut, Frame, KafkaProxy, Verdict

STALE, OTHERS = 1, (2, 3)
_OPEN = "OPEN"
# The client ids by which the first node names itself to controllers: its number, alone or after a prefix.
_STALE_CLIENT = re.compile(rb"(^|-)1(-|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOffCluster:
    """The cluster. Clients use listeners without a proxy."""

    stack: Stack
    # The proxies in front of the first node's ports, and of the other controllers.
    inward: list[KafkaProxy]
    outward: list[KafkaProxy]
    client_ports: dict[int, int]

    def bootstrap(self, *nodes: int) -> str:
        """Return the addresses of these nodes, in this order."""
        return ",".join(f"{ports.HOST}:{self.client_ports[node]}" for node in nodes)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Cut the first node off while the context lasts."""
        for proxy in self.inward:
            proxy.pause()
        rules = [proxy.on_request(None, _cut_stale) for proxy in self.outward]
        try:
            yield
        finally:
            for rule in rules:
                rule.release()
            for proxy in self.inward:
                proxy.resume()

    def leader(self, topic: str, node: int, partition: int = 0) -> int:
        """Return the leader of a partition as this node knows it: a Kafka client would ask any node."""
        return _leader(self.client_ports[node], topic, partition)


def _leader(port: int, topic: str, partition: int) -> int:
    """Send a Metadata request without compact fields, and return the leader; -1 if the node knows none."""
    name = topic.encode()
    request = struct.pack("!hhih", Api.METADATA, 4, 1, 5) + b"tests" + struct.pack("!ih", 1, len(name)) + name + b"\0"
    with socket.create_connection((ports.HOST, port), 15) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack("!i", len(request)) + request)
        answer.read(4)

        def number(form: str) -> int:
            return int(struct.unpack(f"!{form}", answer.read(struct.calcsize(form)))[0])

        def text() -> bytes:
            return answer.read(max(0, number("h")))

        answer.read(8)  # correlation, throttle time
        for _ in range(number("i")):
            answer.read(4), text(), answer.read(4), text()
        text(), answer.read(4)  # cluster, controller
        assert number("i") == 1
        answer.read(2), text(), answer.read(1)  # error, name, internal
        leaders = {}
        for _ in range(number("i")):
            answer.read(2)
            place = number("i")
            leaders[place] = number("i")
            for _ in ("replicas", "in sync"):
                answer.read(4 * number("i"))
    return leaders.get(partition, -1)


def _cut_stale(frame: Frame) -> Verdict | None:
    """Cut a connection from the first node to a controller: requests carry their client id."""
    name = frame.raw[14 : 14 + max(0, int.from_bytes(frame.raw[12:14], signed=True))]
    return Cut() if _STALE_CLIENT.search(name) else None


@contextlib.contextmanager
def cut_off_cluster() -> Iterator[CutOffCluster]:
    """Run the cluster, at first without a cut."""
    client_ports = {node: ports.free_port() for node in (STALE, *OTHERS)}
    controllers = {node: ports.free_port() for node in (STALE, *OTHERS)}
    replicas = ports.free_port()
    options = KafkaOptions(
        nodes=3,
        listeners=(Listener(name=_OPEN, advertised_ports=tuple(client_ports.values())),),
        properties={"auto.create.topics.enable": "false"},
    )
    stack = Stack(kafka=options)
    kafka = stack.kafka
    usual_properties, usual_start = kafka.properties, kafka.start
    inward: list[KafkaProxy] = []
    outward: list[KafkaProxy] = []

    def properties(node: int, directory: Path) -> dict[str, str]:
        found = usual_properties(node, directory)
        voters = ",".join(f"{each}@{ports.HOST}:{port}" for each, port in controllers.items())
        main = f"{MAIN}://{ports.HOST}:{kafka.port(MAIN, node)}"
        way = f"{MAIN}://{ports.HOST}:{replicas}" if node == STALE else main
        advertised = (
            f"{found['advertised.listeners'].replace(main, way)},{CONTROLLER}://{ports.HOST}:{controllers[node]}"
        )
        open_ = f"{_OPEN}://{ports.HOST}:"
        listening = found["listeners"].replace(f"{open_}{kafka.port(_OPEN, node)}", f"{open_}{client_ports[node]}")
        return {
            **found,
            "controller.quorum.voters": voters,
            "advertised.listeners": advertised,
            "listeners": listening,
        }

    with contextlib.ExitStack() as running:

        def proxied(way: int, port: int) -> KafkaProxy:
            return running.enter_context(KafkaProxy(f"{ports.HOST}:{port}", port=way))

        def start() -> None:
            inward.append(proxied(replicas, kafka.port(MAIN, STALE)))
            inward.append(proxied(controllers[STALE], kafka.port(CONTROLLER, STALE)))
            outward.extend(proxied(controllers[node], kafka.port(CONTROLLER, node)) for node in OTHERS)
            usual_start()

        kafka.properties, kafka.start = properties, start  # type: ignore[method-assign]
        running.enter_context(stack)
        yield CutOffCluster(stack=stack, inward=inward, outward=outward, client_ports=client_ports)
