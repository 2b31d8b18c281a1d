"""Checks the progress topic in the cluster: it must have the id that the control row knows, and keep its records.

Kafka never uses a topic id again. So a reader that still finds the known id after its read has read the known topic.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaException

from thresher.core.secrets import revealed
from thresher.delivery.problem import ForeignProgress
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.problem import BrokerLost, BrokerRefused, reason_of
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.topic_advice import NO_UNCLEAN_LEADER, TopicUse

# How long a new topic may be unknown to some brokers.
_SETTLING_SECONDS = 5.0
# The size of a progress record. The maximum is below the client's default of 1 MB.
_MAX_BYTES = 900_000
_MIN_BYTES, _FRAMING_BYTES = 16_384, 2_048
# Neither compacted nor expired, only trimmed: after a restore, all progress within the horizon is settled again.
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def known_topic(admin: Admin, name: str, topic_id: str | None, *, pipeline: str) -> TopicFacts:
    """Return the progress topic. Raises `ForeignProgress` if it is missing, or has another id than the known one."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    with broker_explained():
        while (found := admin.topic(name)) is None and time.monotonic() < deadline:
            # The topic was just made, or a broker has just started: ask again.
            time.sleep(0.05)
    if found is None or topic_id not in {None, found.topic_id}:
        what = "is gone" if found is None else "was replaced by another one"
        raise ForeignProgress(
            f"the progress topic {name} {what}: without it, the rows published last may be published again. To go on "
            f"nevertheless: 'thresher adopt {pipeline}'"
        )
    return found


def require_kept(admin: Admin, name: str) -> None:
    """Raise `BrokerRefused` if the broker may remove progress by itself: rows would then be published again."""
    with broker_explained():
        config = admin.topic_config(name)
    if wrong := [f"{key}={config[key]}" for key, value in KEPT.items() if config[key] != value]:
        wanted = ", ".join(f"{key}={value}" for key, value in KEPT.items())
        raise BrokerRefused(
            f"the progress topic {name} has {', '.join(wrong)}, by which Kafka may remove progress that the relay "
            f"still needs: set {wanted}"
        )


def progress_use(name: str) -> TopicUse:
    """Return what a progress topic's configuration must give."""
    kept = {key: (value, "Kafka may remove progress that is still needed") for key, value in KEPT.items()}
    dated = {"message.timestamp.type": ("LogAppendTime", "old progress is never removed, and the topic grows")}
    return TopicUse(name=name, least_bytes=_MIN_BYTES + _FRAMING_BYTES, exact={**kept, **dated, **NO_UNCLEAN_LEADER})


def progress_limit(admin: Admin, name: str, properties: Mapping[str, Any]) -> int:
    """Return the largest size of a progress record, by the topic's configuration and the client's properties."""
    with broker_explained():
        limit = int(admin.topic_config(name)["max.message.bytes"])
    client = revealed(properties.get("message.max.bytes", _MAX_BYTES))
    limit = min(_MAX_BYTES, limit, int(client)) - _FRAMING_BYTES
    if limit < _MIN_BYTES:
        raise BrokerRefused(
            f"a progress record may have {limit} bytes, {_MIN_BYTES} are needed: raise max.message.bytes of {name}, "
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
                f"the broker refused: {reason.str()}; correct the relay's credentials, or grant it Create, Read, "
                "Write, Describe, DescribeConfigs, Alter and Delete on its progress topic"
            ) from error
        raise BrokerLost(f"the broker failed: {reason_of(reason)}") from error
