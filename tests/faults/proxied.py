"""Brokers that are reached through proxies, one a node, so that tests can cut, delay and drop what passes."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from thresher.devstack import ports
from thresher.devstack.broker import Kafka, KafkaOptions, Listener
from thresher.devstack.stack import Stack
from thresher.testing.proxy import KafkaProxy

PROXIED = "PROXIED"


def proxied_broker(*ways: int, properties: Mapping[str, str] | None = None) -> KafkaOptions:
    """How a cluster is set up, with a way in to each node through the proxy at that port."""
    return KafkaOptions(
        nodes=len(ways),
        listeners=(Listener(name=PROXIED, advertised_ports=ways),),
        properties={"auto.create.topics.enable": "false", **(properties or {})},
    )


@contextlib.contextmanager
def proxies_of(kafka: Kafka, ways: Sequence[int]) -> Iterator[dict[int, KafkaProxy]]:
    """Run a proxy in front of each node, at these ports; yield them by node."""
    with contextlib.ExitStack() as proxies:
        yield {
            node: proxies.enter_context(KafkaProxy(f"{ports.HOST}:{kafka.port(PROXIED, node)}", port=way))
            for node, way in zip(kafka.nodes, ways, strict=True)
        }


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Stack, int]]:
    """A stack of the file's own, whose broker has a way in through a proxy at that port."""
    port = ports.free_port()
    with Stack(kafka=proxied_broker(port)) as running:
        yield running, port


@pytest.fixture
def proxy(proxied: tuple[Stack, int]) -> Iterator[KafkaProxy]:
    """The proxy in front of the broker of `proxied`."""
    stack, port = proxied
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=port) as listening:
        yield listening
