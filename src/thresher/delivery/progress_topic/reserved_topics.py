"""The topics that no row may be sent to: the progress topics of this pipeline and of any other.

Another pipeline's progress topic is recognised by its name and by its configuration: such a topic keeps its records for
ever. Only who may configure the topic decides that: no record is read, and no producer can make a topic look so. An
application's topic of such a name, with any retention, takes rows as any other.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from thresher.delivery.names import PROGRESS
from thresher.delivery.progress_topic.topic import KEPT
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of

# How long an answer about a topic is cached, how many are, and for how many topics one request asks.
_KNOWN_SECONDS, _MOST_KNOWN, _ASKED = 30.0, 10_000, 1_000


@dataclass(slots=True)
class ReservedTopics:
    """Decides which topics are reserved. Pickled to the shards; for one thread there."""

    own: str
    kafka: Mapping[str, Any] = field(repr=False)
    # Makes the client that asks: one for all topics, once a name is asked for.
    admin_of: Callable[[Mapping[str, Any]], Admin] = Admin.of
    _admin: Admin | None = field(default=None, repr=False)
    # By topic: until when the answer is cached, and whether the topic is reserved.
    _known: dict[str, tuple[float, bool]] = field(default_factory=dict, repr=False)

    def __call__(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that no row may be sent to. Raises `BrokerLost` if that cannot be found out now."""
        named = [topic for topic in topics if topic.endswith(PROGRESS)]
        if not named:
            return frozenset()
        now = time.monotonic()
        unknown = [topic for topic in named if self._known.get(topic, (0.0, False))[0] < now and topic != self.own]
        answers = {topic: self._known[topic][1] for topic in named if topic in self._known}
        for start in range(0, len(unknown), _ASKED):
            found = self._ask(unknown[start : start + _ASKED])
            answers |= found
            self._note(found, now + _KNOWN_SECONDS)
        return frozenset(topic for topic in named if topic == self.own or answers[topic])

    def _note(self, found: Mapping[str, bool], until: float) -> None:
        if len(self._known) + len(found) > _MOST_KNOWN:
            self._known.clear()
        self._known.update({topic: (until, reserved) for topic, reserved in found.items()})

    def _ask(self, topics: Collection[str]) -> dict[str, bool]:
        if self._admin is None:
            self._admin = self.admin_of(self.kafka)
        try:
            found = self._admin.topic_configs(topics)
        except KafkaException as error:
            raise BrokerLost(f"whether topics hold progress is not known: {error.args[0].str()}") from error
        return {topic: _keeps_progress(topic, answer) for topic, answer in found.items()}


def _keeps_progress(topic: str, answer: Mapping[str, str] | KafkaError) -> bool:
    if not isinstance(answer, KafkaError):
        return all(answer.get(key) == value for key, value in KEPT.items())
    if refusal_of(answer) in {Refusal.TOPIC, Refusal.ROW, Refusal.TOPIC_DENIED}:
        # Rows of a missing topic wait anyway. Of a topic whose configuration is hidden, its ACLs say who may write.
        return False
    raise BrokerLost(f"whether {topic} holds progress is not known: {answer.str()}")
