"""The ways in which a broker fails us. Each class says by its type whether a retry can help."""

from confluent_kafka import KafkaError

from thresher.core.errors import PipelineProblem, Trouble
from thresher.kafka.refusal import Refusal, refusal_of

_REMEDIES = {
    Refusal.CLIENT: "mend the credentials, or grant the permission",
    Refusal.TOPIC_DENIED: "grant Read and Describe on the topic",
    Refusal.TOPIC: "create the topic, or mend its name",
}


class BrokerRefused(PipelineProblem):
    """The broker answered and said no: credentials, permissions, or a topic that does not exist."""


class BrokerLost(Trouble):
    """The broker does not answer, or the producer was fenced."""


def broker_problem(what: str, error: KafkaError) -> BrokerRefused | BrokerLost:
    """Return the error to raise where reading failed: `what` names the request and its object."""
    remedy = _REMEDIES.get(refusal_of(error))
    return BrokerLost(f"{what}: {error.str()}") if remedy is None else BrokerRefused(f"{what}: {error.str()}; {remedy}")
