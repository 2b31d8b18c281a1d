"""Whether topics can be written to. The cluster is asked before records are sent, for all topics in one request.

A topic that cannot be written to would fail every record of a transaction. An answer is cached: longer for an available
topic than for an unavailable one.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of

# How long an answer is cached. Until it expires, a partition that has failed since may be in the next transaction.
_AVAILABLE_SECONDS, _UNAVAILABLE_SECONDS = 5.0, 1.0
# How long `min.insync.replicas` of a topic is cached, as long as the topic has enough in-sync replicas.
_NEEDED_SECONDS = 60.0
# How many topics an error names.
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """The topic can be written to; it has this many partitions."""

    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The topic cannot be written to. Without a refusal this is temporary, and no fault of the topic's records."""

    refusal: Refusal | None
    why: str


TopicStatus = Available | Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The status of each topic, and the time of the survey (monotonic)."""

    now: float
    topics: Mapping[str, TopicStatus]


class TopicSurvey:
    """Caches the status of topics. For one thread.

    `partitions` asks through the producer, for a topic that is new or has changed. That updates the metadata of the
    producer's client, and lets a broker with auto-creation create the topic.
    """

    def __init__(
        self,
        admin: Admin,
        partitions: Callable[[str], int | KafkaError],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._partitions = partitions
        self._clock = clock
        self._known: dict[str, tuple[float, TopicStatus]] = {}
        self._seen: dict[str, TopicFacts] = {}
        # When each recently used topic was last asked for.
        self._wanted: dict[str, float] = {}
        # By topic: the end of the cache time, and the number of in-sync replicas that the topic needs.
        self._needed: dict[str, tuple[float, int]] = {}

    def survey(self, topics: Collection[str], *, fresh: bool = False) -> Surveyed:
        """Return the status of topics, from the cache or by asking the cluster. `fresh` ignores the cache."""
        now = self._clock()
        stale = [topic for topic in topics if fresh or self._known.get(topic, (0.0,))[0] < now]
        self._wanted.update(dict.fromkeys(topics, now))
        if stale and not fresh:
            stale = list({*stale, *self._soon_stale(now)})
        if fresh:
            self._seen.clear()
        for topic, status in self.ask(stale).items():
            keep = _AVAILABLE_SECONDS if isinstance(status, Available) else _UNAVAILABLE_SECONDS
            self._known[topic] = (now + keep, status)
        return Surveyed(now=now, topics={topic: self._known[topic][1] for topic in topics})

    def _soon_stale(self, now: float) -> list[str]:
        """Return topics whose answers expire soon: asking for them together saves requests."""
        self._wanted = {topic: last for topic, last in self._wanted.items() if now - last < _AVAILABLE_SECONDS}
        soon = now + _AVAILABLE_SECONDS / 2
        return [topic for topic in self._wanted if topic in self._known and self._known[topic][0] < soon]

    def ask(self, topics: Collection[str]) -> dict[str, TopicStatus]:
        """Ask the cluster for the status of topics now."""
        if not topics:
            return {}
        try:
            found = self._admin.facts(topics)
        except KafkaException as error:
            named = ", ".join(sorted(topics)[:_NAMED])
            raise BrokerLost(f"the cluster did not return the status of {named}: {error.args[0].str()}") from error
        self._ask_needed(found)
        return {topic: self._status(topic, answer) for topic, answer in found.items()}

    def forget(self, topic: str | None = None) -> None:
        """Drop the cached status of a topic, or of all topics."""
        if topic is None:
            self._known.clear()
            self._seen.clear()
        else:
            self._known.pop(topic, None)
            self._seen.pop(topic, None)

    def _ask_needed(self, found: Mapping[str, TopicFacts | KafkaError]) -> None:
        """Ask how many in-sync replicas topics need: new topics, and topics that seem to have too few."""
        now = self._clock()
        asked = [
            topic
            for topic, facts in found.items()
            if isinstance(facts, TopicFacts)
            and (self._needed.get(topic, (0.0, 0))[0] < now or self._lacking(topic, facts) is not None)
        ]
        if asked:
            try:
                answers = self._admin.min_in_sync(asked)
            except KafkaException:
                # This answer is optional: without it, the topics' facts and the earlier answers are used.
                answers = {}
            for topic in asked:
                before = self._needed.get(topic, (0.0, 1))[1]
                self._needed[topic] = (now + _NEEDED_SECONDS, answers.get(topic, before))

    def _lacking(self, topic: str, facts: TopicFacts) -> int | None:
        """Return the first partition with fewer in-sync replicas than the topic needs."""
        _, needed = self._needed.get(topic, (0.0, 0))
        return next((place for place, count in enumerate(facts.in_sync) if count < needed), None)

    def _status(self, topic: str, answer: TopicFacts | KafkaError) -> TopicStatus:
        if isinstance(answer, TopicFacts) and not answer.writable:
            return Unavailable(refusal=Refusal.TOPIC_DENIED, why=f"{topic}: we may not write to it")
        if isinstance(answer, TopicFacts) and answer.leaderless:
            # Records for it would wait in the client, and delay those of every other topic of the shard.
            return Unavailable(refusal=None, why=f"{topic}: nobody leads its partition {answer.leaderless[0]}")
        if isinstance(answer, TopicFacts) and (lacking := self._lacking(topic, answer)) is not None:
            # The partition would accept neither a record nor the marker that ends a transaction.
            count, needed = answer.in_sync[lacking], self._needed[topic][1]
            why = f"{topic}: its partition {lacking} has {count} in-sync replicas and needs {needed}"
            return Unavailable(refusal=None, why=why)
        if isinstance(answer, TopicFacts) and self._seen.get(topic) == answer:
            return Available(partitions=answer.partitions)
        found = self._partitions(topic)
        if isinstance(found, int):
            if isinstance(answer, TopicFacts):
                self._seen[topic] = answer
            return Available(partitions=found)
        return Unavailable(refusal=refusal_of(found), why=f"{topic}: {found.str()}")
