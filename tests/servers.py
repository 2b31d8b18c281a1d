"""The servers that a run of the tests shares: how its Kafka broker is set up."""

from tests.faults.proxied import PROXIED
from thresher.devstack import ports
from thresher.devstack.broker import KafkaOptions, Listener


def kafka_options() -> KafkaOptions:
    """An account that ACLs bind, one that comes by SASL_SSL, and a listener for a proxy, whose port is drawn here."""
    return KafkaOptions(
        users={"relay": "secret"},
        scram={"alice": "alice-secret"},
        listeners=(Listener(name=PROXIED, advertised_ports=(ports.free_port(),)),),
        properties={"auto.create.topics.enable": "false", "super.users": "User:ANONYMOUS;User:alice"},
    )
