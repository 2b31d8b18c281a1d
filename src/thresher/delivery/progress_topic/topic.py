"""The progress topic as the cluster has it: the one that its pipeline knows, or a reason to stop.

Topic ids never come back. So whoever reads progress and then still finds the known id has read the known topic.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaException

from thresher.delivery.problem import ForeignProgress
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.problem import BrokerLost, BrokerRefused, reason_of
from thresher.kafka.refusal import Refusal, refusal_of

# How long a cluster may take to agree on which topics there are.
_SETTLING_SECONDS = 5.0
# Less than what a client's own default allows in one record.
_MOST_BYTES = 900_000
_LEAST_BYTES, _FRAMING_BYTES = 16_384, 2_048
# Not compacted, kept until it is trimmed: after a restore all of the horizon is settled again.
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def known_topic(admin: Admin, name: str, topic_id: str | None, *, pipeline: str) -> TopicFacts:
    """Return the progress topic. `ForeignProgress` if it is not there, or has another id than the one that is known."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    with broker_explained():
        while (found := admin.topic(name)) is None and time.monotonic() < deadline:
            # A topic just made, or a broker just started: the next answer may know it.
            time.sleep(0.05)
    if found is None or topic_id not in {None, found.topic_id}:
        what = "is gone" if found is None else "was replaced by another one"
        raise ForeignProgress(
            f"the progress topic {name} {what}: without it, rows that were published last may be published again. "
            f"To go on nevertheless: 'thresher adopt {pipeline}'"
        )
    return found


def require_kept(admin: Admin, name: str) -> None:
    """See that the broker does not remove progress by itself: without it, rows would be published again."""
    with broker_explained():
        config = admin.topic_config(name)
    if wrong := [f"{key}={config[key]}" for key, value in KEPT.items() if config[key] != value]:
        wanted = ", ".join(f"{key}={value}" for key, value in KEPT.items())
        raise BrokerRefused(
            f"the progress topic {name} has {', '.join(wrong)}, and would lose what the relay knows of the last rows: "
            f"set {wanted}"
        )


def progress_limit(admin: Admin, name: str, properties: Mapping[str, Any]) -> int:
    """Return how large a progress record may be, by the broker's word and by the properties of the client."""
    with broker_explained():
        limit = int(admin.topic_config(name)["max.message.bytes"])
    client = properties.get("message.max.bytes", _MOST_BYTES)
    limit = min(_MOST_BYTES, limit, int(client)) - _FRAMING_BYTES
    if limit < _LEAST_BYTES:
        raise BrokerRefused(
            f"a progress record may have {limit} bytes, {_LEAST_BYTES} are needed: raise max.message.bytes of {name}, "
            "or message.max.bytes of the client"
        )
    return limit


@contextlib.contextmanager
def broker_explained() -> Iterator[None]:
    """Turn the admin client's errors into ours."""
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        if refusal_of(reason) in {Refusal.CLIENT, Refusal.TOPIC_DENIED}:
            raise BrokerRefused(
                f"the broker refused: {reason.str()}; mend the relay's credentials, or grant it Create, Read, Write, "
                "Describe, DescribeConfigs, Alter and Delete on its progress topic"
            ) from error
        raise BrokerLost(f"the broker failed: {reason_of(reason)}") from error
