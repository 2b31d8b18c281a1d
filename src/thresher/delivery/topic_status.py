"""How topics stand with the cluster: there and ours to write to, or not. Asked before rows are sent, all in one go.

A topic that may not be written to would fail every record of a transaction. What was said is believed for a while:
present for longer than absent.
"""

import time
from collections.abc import Callable, Collection

from confluent_kafka import KafkaError, KafkaException

from thresher.delivery.effects import Absent, Present, Standing, Surveyed
from thresher.delivery.fate import Kind
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal, refusal_of

_PRESENT_SECONDS, _ABSENT_SECONDS = 30.0, 1.0
# What a row dies of whose record was refused so.
KINDS = {
    Refusal.ROW: Kind.REJECTED,
    Refusal.TIME: Kind.REJECTED,
    Refusal.SIZE: Kind.TOO_LARGE,
    Refusal.TOPIC: Kind.NO_TOPIC,
    Refusal.TOPIC_DENIED: Kind.NOT_AUTHORISED,
}


class Standings:
    """What the cluster said of topics. For one thread.

    `partitions` asks as the producer, about a topic that is new to it or has changed: what it knows of the topic is
    up to date then, and where the broker makes topics by itself, that makes one.
    """

    def __init__(self, admin: Admin, partitions: Callable[[str], int | KafkaError]) -> None:
        self._admin = admin
        self._partitions = partitions
        self._known: dict[str, tuple[float, Standing]] = {}
        self._told: dict[str, TopicFacts] = {}

    def survey(self, topics: Collection[str], *, fresh: bool = False) -> Surveyed:
        """Return how topics stand, by what is known or by asking."""
        now = time.monotonic()
        stale = [topic for topic in topics if fresh or self._known.get(topic, (0.0,))[0] < now]
        if fresh:
            self._told.clear()
        for topic, standing in self.ask(stale).items():
            keep = _PRESENT_SECONDS if isinstance(standing, Present) else _ABSENT_SECONDS
            self._known[topic] = (now + keep, standing)
        return Surveyed(now=now, standings={topic: self._known[topic][1] for topic in topics})

    def ask(self, topics: Collection[str]) -> dict[str, Standing]:
        """Ask how topics stand now."""
        if not topics:
            return {}
        try:
            found = self._admin.facts(topics)
        except KafkaException as error:
            raise BrokerLost(f"the cluster did not say how topics stand: {error.args[0].str()}") from error
        return {topic: self._standing(topic, answer) for topic, answer in found.items()}

    def forget(self, topic: str | None = None) -> None:
        """Believe nothing of a topic any more, or of all."""
        if topic is None:
            self._known.clear()
            self._told.clear()
        else:
            self._known.pop(topic, None)
            self._told.pop(topic, None)

    def _standing(self, topic: str, answer: TopicFacts | KafkaError) -> Standing:
        if isinstance(answer, TopicFacts) and not answer.writable:
            return Absent(kind=Kind.NOT_AUTHORISED, why=f"{topic}: we may not write to it")
        if isinstance(answer, TopicFacts) and answer.leaderless:
            # Their records would wait in the client, and every other topic's of the shard behind them.
            return Absent(kind=None, why=f"{topic}: nobody leads its partition {answer.leaderless[0]}")
        if isinstance(answer, TopicFacts) and self._told.get(topic) == answer:
            return Present(partitions=answer.partitions)
        found = self._partitions(topic)
        if isinstance(found, int):
            if isinstance(answer, TopicFacts):
                self._told[topic] = answer
            return Present(partitions=found)
        return Absent(kind=KINDS.get(refusal_of(found)), why=f"{topic}: {found.str()}")
