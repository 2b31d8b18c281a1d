"""The errors of a broker. The class of an error says whether a retry can help."""

import re

from confluent_kafka import KafkaError

from thresher.core.errors import PipelineProblem, Trouble
from thresher.kafka.refusal import Refusal, refusal_of

_REMEDIES = {
    Refusal.CLIENT: "mend the credentials, or grant the permission",
    Refusal.TOPIC: "create the topic, or mend its name",
}


_UNREACHED = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
)
# The end of some error texts. It differs each time, though nothing has changed.
_AFTER = re.compile(r" \(after \d+ms in state .*\)$")


class BrokerRefused(PipelineProblem):
    """The broker refused: credentials, permissions, or a topic that does not exist. Somebody has to act."""


class BrokerLost(Trouble):
    """The broker does not answer, or the producer was fenced. A retry may help."""


def reason_of(error: KafkaError) -> str:
    """Return the text of an error without its changing part, and what to do if the broker was not reached."""
    text = _AFTER.sub("", error.str())
    return (
        f"{text}; see that the broker runs, and that bootstrap.servers names it" if error.code() in _UNREACHED else text
    )


def broker_problem(what: str, error: KafkaError, *, rights: str = "Read and Describe") -> BrokerRefused | BrokerLost:
    """Return the error to raise where a request failed: `what` names the request and its object.

    `rights`: what the request needs on its topic; by default those of a reader.
    """
    refusal = refusal_of(error)
    remedy = f"grant {rights} on the topic" if refusal is Refusal.TOPIC_DENIED else _REMEDIES.get(refusal)
    if remedy is None:
        return BrokerLost(f"{what}: {reason_of(error)}")
    return BrokerRefused(f"{what}: {error.str()}; {remedy}")
