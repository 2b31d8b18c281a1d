"""The options of the Kafka broker that a test run shares, and a broker for one test."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.proxied import PROXIED
from thresher.devstack import ports
from thresher.devstack.broker import KafkaOptions, Listener
from thresher.devstack.stack import Stack


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
