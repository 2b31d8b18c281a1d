"""Brokers behind proxies, one per node, so that tests can cut, delay and drop requests and answers."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from thresher.devstack import ports
from thresher.devstack.broker import Kafka, KafkaOptions, Listener
from thresher.devstack.stack import Stack
from thresher.testing.proxy import KafkaProxy

PROXIED = "PROXIED"


def proxied_broker(*ways: int, properties: Mapping[str, str] | None = None) -> KafkaOptions:
    """Return the options of a cluster with a listener of each node behind the proxy at that port."""
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
    """A stack for the test file alone, whose broker has a listener behind a proxy at that port."""
    port = ports.free_port()
    with Stack(kafka=proxied_broker(port)) as running:
        yield running, port


@pytest.fixture
def proxy(proxied: tuple[Stack, int]) -> Iterator[KafkaProxy]:
    """The proxy in front of the broker of `proxied`."""
    stack, port = proxied
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=port) as listening:
        yield listening


@pytest.fixture
def shared_proxy(stack: Stack) -> Iterator[KafkaProxy]:
    """A proxy in front of the run's broker, for tests that do not stop the broker itself."""
    (listener,) = (each for each in stack.kafka.options.listeners if each.name == PROXIED)
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=listener.advertised_ports[0]) as listening:
        yield listening
