"""The options of the Kafka broker that a test run shares."""

from tests.faults.proxied import PROXIED
from thresher.devstack import ports
from thresher.devstack.broker import KafkaOptions, Listener


def kafka_options() -> KafkaOptions:
    """A user subject to ACLs, a SASL_SSL user, and a listener for a proxy, whose port is chosen here."""
    return KafkaOptions(
        users={"relay": "secret"},
        scram={"alice": "alice-secret"},
        listeners=(Listener(name=PROXIED, advertised_ports=(ports.free_port(),)),),
        properties={"auto.create.topics.enable": "false", "super.users": "User:ANONYMOUS;User:alice"},
    )
