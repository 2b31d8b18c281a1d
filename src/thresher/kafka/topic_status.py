"""Whether topics can be written to, as the cluster says: asked before records are sent, all topics in one request.

A topic that may not be written to would fail every record of a transaction. An answer is believed for a while: longer
for a topic that is available than for one that is not.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of

_AVAILABLE_SECONDS, _UNAVAILABLE_SECONDS = 30.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """The topic is there, with so many partitions."""

    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The topic cannot be written to. Without a refusal, time may mend it: nothing is said about its records."""

    refusal: Refusal | None
    why: str


TopicStatus = Available | Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The status of each topic, and when it was looked up (monotonic)."""

    now: float
    topics: Mapping[str, TopicStatus]


class TopicSurvey:
    """Remembers what the cluster said of topics. For one thread.

    `partitions` asks as the producer, about a topic that is new to it or has changed: its client's metadata is up to
    date then, and a broker that creates topics by itself creates this one.
    """

    def __init__(self, admin: Admin, partitions: Callable[[str], int | KafkaError]) -> None:
        self._admin = admin
        self._partitions = partitions
        self._known: dict[str, tuple[float, TopicStatus]] = {}
        self._seen: dict[str, TopicFacts] = {}

    def survey(self, topics: Collection[str], *, fresh: bool = False) -> Surveyed:
        """Return the status of topics, by what is known or by asking."""
        now = time.monotonic()
        stale = [topic for topic in topics if fresh or self._known.get(topic, (0.0,))[0] < now]
        if fresh:
            self._seen.clear()
        for topic, status in self.ask(stale).items():
            keep = _AVAILABLE_SECONDS if isinstance(status, Available) else _UNAVAILABLE_SECONDS
            self._known[topic] = (now + keep, status)
        return Surveyed(now=now, topics={topic: self._known[topic][1] for topic in topics})

    def ask(self, topics: Collection[str]) -> dict[str, TopicStatus]:
        """Ask the cluster for the status of topics now."""
        if not topics:
            return {}
        try:
            found = self._admin.facts(topics)
        except KafkaException as error:
            raise BrokerLost(f"the cluster did not say how topics stand: {error.args[0].str()}") from error
        return {topic: self._status(topic, answer) for topic, answer in found.items()}

    def forget(self, topic: str | None = None) -> None:
        """Believe nothing of a topic any more, or of all."""
        if topic is None:
            self._known.clear()
            self._seen.clear()
        else:
            self._known.pop(topic, None)
            self._seen.pop(topic, None)

    def _status(self, topic: str, answer: TopicFacts | KafkaError) -> TopicStatus:
        if isinstance(answer, TopicFacts) and not answer.writable:
            return Unavailable(refusal=Refusal.TOPIC_DENIED, why=f"{topic}: we may not write to it")
        if isinstance(answer, TopicFacts) and answer.leaderless:
            # Its records would wait in the client, and those of every other topic of the shard behind them.
            return Unavailable(refusal=None, why=f"{topic}: nobody leads its partition {answer.leaderless[0]}")
        if isinstance(answer, TopicFacts) and self._seen.get(topic) == answer:
            return Available(partitions=answer.partitions)
        found = self._partitions(topic)
        if isinstance(found, int):
            if isinstance(answer, TopicFacts):
                self._seen[topic] = answer
            return Available(partitions=found)
        return Unavailable(refusal=refusal_of(found), why=f"{topic}: {found.str()}")
