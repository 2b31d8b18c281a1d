import uuid
from collections.abc import Iterator

import pytest

from tests.contract.queue_worlds import KafkaWorld, MemoryWorld, Service, World
from thresher.devstack.stack import Stack
from thresher.queue import Queue


@pytest.fixture(scope="session")
def kafka_world(stack: Stack) -> Iterator[KafkaWorld]:
    """One service for all contract tests of queues: each test has its own queues."""
    world = KafkaWorld(stack.kafka.bootstrap)
    with world.service:
        yield world


@pytest.fixture(params=["memory", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "kafka":
        yield request.getfixturevalue("kafka_world")
        return
    memory = MemoryWorld()
    with memory.service:
        yield memory


@pytest.fixture
def service(world: World) -> Service:
    return world.service


@pytest.fixture
def queue(service: Service) -> Queue:
    return service.queue(f"orders/{uuid.uuid4()}")
