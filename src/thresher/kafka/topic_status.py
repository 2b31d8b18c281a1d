"""Whether topics can be written to. The cluster is asked before records are sent, for all topics in one request.

A topic that cannot be written to would fail every record of a transaction. An answer is cached: longer for an available
topic than for an unavailable one.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.admin import Admin, TopicFacts, TopicLimits
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of

# How long an answer is cached. Until it expires, a partition that has failed since may be in the next transaction.
_AVAILABLE_SECONDS, _UNAVAILABLE_SECONDS = 5.0, 1.0
# How long the limits of a topic are cached, as long as the topic has enough in-sync replicas.
_LIMITS_SECONDS = 60.0
# Without an answer of the cluster, a topic needs one in-sync replica; records that it refuses show the rest.
_NO_LIMITS = TopicLimits(min_in_sync=1)
# The time-out of the question for all topics.
_LIST_SECONDS = 3.0
# How many topics an error names.
_NAMED = 5
# A request names this many topics that are new. If half of them or more are missing, the others are left for later:
# anyone who may write a row may name any number of topics, and brokers take long to deny thousands.
_AT_ONCE = 250
# A producer's question lets a broker with auto-creation create the topic. So many missing topics are asked about in
# this way at once; once so many were asked about in vain, one in 10 s.
_CREATED_AT_ONCE, _MOST_VAIN, _VAIN_SECONDS = 3, 20, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """The topic can be written to; it has this many partitions."""

    partitions: int
    # How far a record's own timestamp may be before and after the broker's time; None: not known, or no limit.
    before_ms: int | None = None
    after_ms: int | None = None
    # The topic is compacted, and takes no record without a key.
    keyed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The topic cannot be written to. Without a refusal this is temporary, and no fault of the topic's records."""

    refusal: Refusal | None
    why: str


TopicStatus = Available | Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The status of each topic, and the time of the survey (monotonic). `server_ms`: by a server's clock, if known."""

    now: float
    topics: Mapping[str, TopicStatus]
    server_ms: int | None = None


class TopicSurvey:
    """Caches the status of topics. For one thread.

    `partitions` asks through the producer, for a topic that is new or has changed. That updates the metadata of the
    producer's client, and lets a broker with auto-creation create the topic. For topics that the cluster does not know,
    it is asked rarely if that was in vain before.
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
        # By topic: the end of the cache time, and the topic's limits.
        self._limits: dict[str, tuple[float, TopicLimits]] = {}
        # Missing topics that were asked about through the producer and do not exist yet; and when the next may be.
        self._vain: dict[str, None] = {}
        self._next_vain = 0.0
        self._room = 0

    def survey(self, topics: Collection[str], *, fresh: bool = False) -> Surveyed:
        """Return the status of topics, from the cache or by asking the cluster. `fresh` ignores the cache.

        If many topics are missing, the answer lacks others that are new: ask for them later.
        """
        now = self._clock()
        if not topics:
            # Asked for the time alone, often, while much may be known.
            return Surveyed(now=now, topics={})
        stale = [topic for topic in topics if fresh or self._known.get(topic, (0.0,))[0] < now]
        self._wanted.update(dict.fromkeys(topics, now))
        if stale and not fresh:
            stale = list({*stale, *self._soon_stale(now)})
        for asked in self._parts(stale):
            if fresh:
                self._seen.clear()
                for topic in asked:
                    self._limits[topic] = (0.0, self._limits.get(topic, (0.0, _NO_LIMITS))[1])
            answers = self.ask(asked)
            for topic, status in answers.items():
                keep = _AVAILABLE_SECONDS if isinstance(status, Available) else _UNAVAILABLE_SECONDS
                self._known[topic] = (now + keep, status)
            if 2 * sum(isinstance(status, Available) for status in answers.values()) < len(answers):
                break
        if len(self._known) > len(topics) + _AT_ONCE:
            # Whatever names were asked about once must not stay for ever.
            self._known = {
                topic: known for topic, known in self._known.items() if known[0] >= now or topic in self._wanted
            }
        known = {topic: self._known.get(topic, (0.0, None)) for topic in topics}
        return Surveyed(
            now=now, topics={topic: status for topic, (until, status) in known.items() if status and until >= now}
        )

    def _parts(self, stale: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield the topics to ask about, in requests: topics that could be written to first, and all together."""
        if len(stale) <= _AT_ONCE:
            if stale:
                yield stale
            return
        seen = [topic for topic in stale if topic in self._seen]
        new = [topic for topic in stale if topic not in self._seen]
        yield [*seen, *new[:_AT_ONCE]]
        for start in range(_AT_ONCE, len(new), _AT_ONCE):
            yield new[start : start + _AT_ONCE]

    def _soon_stale(self, now: float) -> list[str]:
        """Return available topics whose answers expire soon: asking for them together saves requests."""
        self._wanted = {topic: last for topic, last in self._wanted.items() if now - last < _AVAILABLE_SECONDS}
        soon = now + _AVAILABLE_SECONDS / 2
        known = ((topic, *self._known[topic]) for topic in self._wanted if topic in self._known)
        return [topic for topic, until, status in known if until < soon and isinstance(status, Available)]

    def ask(self, topics: Collection[str]) -> dict[str, TopicStatus]:
        """Ask the cluster for the status of topics now."""
        if not topics:
            return {}
        try:
            found = self._admin.facts(topics)
        except KafkaException as error:
            named = ", ".join(sorted(topics)[:_NAMED])
            raise BrokerLost(f"the cluster did not return the status of {named}: {error.args[0].str()}") from error
        self._ask_limits(found)
        self._room = _CREATED_AT_ONCE
        return {topic: self._status(topic, answer) for topic, answer in found.items()}

    def existing(self) -> frozenset[str] | None:
        """Return the names of all topics that the cluster shows us; None if it did not answer soon."""
        try:
            return self._admin.all_names(seconds=_LIST_SECONDS)
        except KafkaException:
            # This answer is optional: other reads find rows of these topics too, later.
            return None

    def forget(self, topic: str | None = None) -> None:
        """Drop the cached status of a topic, or of all topics."""
        if topic is None:
            self._known.clear()
            self._seen.clear()
        else:
            self._known.pop(topic, None)
            self._seen.pop(topic, None)

    def _available(self, topic: str, partitions: int) -> Available:
        _, limits = self._limits.get(topic, (0.0, _NO_LIMITS))
        return Available(
            partitions=partitions, before_ms=limits.before_ms, after_ms=limits.after_ms, keyed=limits.keyed
        )

    def _may_create(self, topic: str, answer: KafkaError) -> bool:
        """Whether to ask through the producer for a topic that the cluster does not know: it may be created then."""
        if refusal_of(answer) is not Refusal.TOPIC:
            return True
        now = self._clock()
        if self._room <= 0 or (len(self._vain) >= _MOST_VAIN and now < self._next_vain):
            return False
        self._room -= 1
        self._next_vain = now + _VAIN_SECONDS
        if len(self._vain) < _MOST_VAIN:
            self._vain[topic] = None
        return True

    def _ask_limits(self, found: Mapping[str, TopicFacts | KafkaError]) -> None:
        """Ask for the limits of topics that are new, and of topics that seem to have too few in-sync replicas."""
        now = self._clock()
        asked = [
            topic
            for topic, facts in found.items()
            if isinstance(facts, TopicFacts)
            and (self._limits.get(topic, (0.0, _NO_LIMITS))[0] < now or self._lacking(topic, facts) is not None)
        ]
        if asked:
            try:
                answers = self._admin.limits(asked)
            except KafkaException:
                # This answer is optional: without it, the topics' facts and the earlier answers are used.
                answers = {}
            for topic in asked:
                # A row without a key is dead at once, so an earlier answer does not tell that its topic demands one.
                before = replace(self._limits.get(topic, (0.0, _NO_LIMITS))[1], keyed=False)
                self._limits[topic] = (now + _LIMITS_SECONDS, answers.get(topic, before))

    def _lacking(self, topic: str, facts: TopicFacts) -> int | None:
        """Return the first partition with fewer in-sync replicas than the topic needs."""
        _, limits = self._limits.get(topic, (0.0, _NO_LIMITS))
        return next((place for place, count in enumerate(facts.in_sync) if count < limits.min_in_sync), None)

    def _status(self, topic: str, answer: TopicFacts | KafkaError) -> TopicStatus:
        if isinstance(answer, TopicFacts) and not answer.writable:
            return Unavailable(refusal=Refusal.TOPIC_DENIED, why=f"{topic}: we may not write to it")
        if isinstance(answer, TopicFacts) and answer.leaderless:
            # Records for it would wait in the client, and delay those of every other topic of the shard.
            return Unavailable(refusal=None, why=f"{topic}: nobody leads its partition {answer.leaderless[0]}")
        if isinstance(answer, TopicFacts) and (lacking := self._lacking(topic, answer)) is not None:
            # The partition would accept neither a record nor the marker that ends a transaction.
            count, needed = answer.in_sync[lacking], self._limits[topic][1].min_in_sync
            why = f"{topic}: its partition {lacking} has {count} in-sync replicas and needs {needed}"
            return Unavailable(refusal=None, why=why)
        if isinstance(answer, TopicFacts) and self._seen.get(topic) == answer:
            return self._available(topic, answer.partitions)
        unasked = isinstance(answer, KafkaError) and not self._may_create(topic, answer)
        found = answer if isinstance(answer, KafkaError) and unasked else self._partitions(topic)
        if isinstance(found, int):
            self._vain.pop(topic, None)
            if isinstance(answer, TopicFacts):
                self._seen[topic] = answer
            return self._available(topic, found)
        return Unavailable(refusal=refusal_of(found), why=f"{topic}: {found.str()}")
