"""The options of the Kafka broker that a test run shares, a broker for one test, and topics that are ready."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.faults.proxied import PROXIED
from tests.processes import eventually
from thresher.devstack import ports
from thresher.devstack.broker import KafkaOptions, Listener
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin


def kafka_options() -> KafkaOptions:
    """A user subject to ACLs, a SASL_SSL user, and a listener for a proxy, whose port is chosen here."""
    return KafkaOptions(
        users={"relay": "secret"},
        scram={"alice": "alice-secret"},
        listeners=(Listener(name=PROXIED, advertised_ports=(ports.free_port(),)),),
        properties={"auto.create.topics.enable": "false", "super.users": "User:ANONYMOUS;User:alice"},
    )


@contextmanager
def stack_without_postgres() -> Iterator[Stack]:
    """A stack whose broker alone runs, for a test that stops the broker."""
    stack = Stack()
    try:
        stack.kafka.prepare()
        stack.kafka.start()
        yield stack
    finally:
        stack.stop()


def create_topic(admin: Admin, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic, and wait until the broker knows it and leads its partitions: the controller knows it earlier."""
    admin.create_topic(topic, partitions=partitions, config=config)
    eventually(lambda: (facts := admin.topic(topic)) is not None and not facts.leaderless, 60)


def configure(admin: Admin, topic: str, **settings: str) -> None:
    """Change settings of a topic, and wait until the broker applies them."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.client.incremental_alter_configs([resource]).values():
        future.result(30)
    eventually(lambda: settings.items() <= admin.topic_config(topic).items(), 60)
