"""The topics that no row may be sent to: the progress topics of this pipeline and of any other.

Another pipeline's progress topic is recognised by its name and by the records in it. An application's topic may have
such a name too: it holds no progress, and rows are sent to it as to any other.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException

from thresher.delivery.names import PROGRESS
from thresher.delivery.progress_topic.seal import HEADER
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail, TailRecord, TailRefused, TailUnread
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of

# How long an answer about a topic is cached.
_KNOWN_SECONDS = 30.0


def _never(_: bytes) -> bool:
    return False


@dataclass(slots=True)
class ReservedTopics:
    """Decides which topics are reserved. Pickled to the shards; for one thread there."""

    own: str
    kafka: Mapping[str, Any] = field(repr=False)
    # Whether a record's value is progress without a seal, as earlier versions of the relay wrote it.
    unsealed: Callable[[bytes], bool] = _never
    # By topic: until when the answer is cached, and whether the topic is reserved.
    _known: dict[str, tuple[float, bool]] = field(default_factory=dict, repr=False)

    def __call__(self, topic: str) -> bool:
        """Whether no row may be sent to a topic. Raises `BrokerLost` if that cannot be found out now."""
        if topic == self.own:
            return True
        if not topic.endswith(PROGRESS):
            return False
        until, reserved = self._known.get(topic, (0.0, False))
        if time.monotonic() > until:
            reserved = self._holds_progress(topic)
            self._known[topic] = (time.monotonic() + _KNOWN_SECONDS, reserved)
        return reserved

    def _holds_progress(self, topic: str) -> bool:
        try:
            facts = Admin.of(self.kafka).topic(topic)
            if facts is None or 0 in facts.leaderless:
                # Rows of a topic that is missing or has no leader wait anyway.
                return False
            with CommittedTail(topic, 0, self.kafka) as tail:
                for window in tail.windows():
                    records = list(window)
                    # Empty records without a seal say nothing: read further back.
                    if any(record.value or self._is_progress(record) for record in records):
                        return any(map(self._is_progress, records))
                return False
        except TailRefused:
            # We may not read the topic. Its owner decides by ACLs who may write to it.
            return False
        except TailUnread as error:
            raise BrokerLost(f"whether {topic} holds progress is not known: {error}") from error
        except KafkaException as error:
            if refusal_of(error.args[0]) is Refusal.TOPIC_DENIED:
                return False
            raise BrokerLost(f"whether {topic} holds progress is not known: {error.args[0].str()}") from error

    def _is_progress(self, record: TailRecord) -> bool:
        return any(name == HEADER for name, _ in record.headers) or self.unsealed(record.value)
