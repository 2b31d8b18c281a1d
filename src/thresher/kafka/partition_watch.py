"""Watches a topic's number of partitions, without ever blocking the thread that asks.

A request is sent at intervals, and its answer is taken when it is there. A broker that does not answer is asked again.
A topic that stays missing, a refusal, and a topic that was deleted and created again are errors.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from thresher.core.errors import PipelineProblem
from thresher.kafka.problem import broker_problem
from thresher.kafka.refusal import Refusal, refusal_of

# How often the topic is asked for until it has answered once.
_FIRST_SECONDS = 0.2


class PositionLost(PipelineProblem):
    """An offset to read from is not in the log any more, or belongs to another topic. Somebody has to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimings:
    """How often a topic is asked for, how long an answer may take, and how long a topic may seem missing."""

    every_seconds: float = 5.0
    answer_seconds: float = 10.0
    # A broker that has just started, or a topic that is new, is not known everywhere at once.
    missing_seconds: float = 10.0


class PartitionWatch:
    """The number of one topic's partitions, asked for at intervals. For one thread."""

    def __init__(
        self,
        topic: str,
        client: AdminClient,
        *,
        timings: WatchTimings,
        errors: list[KafkaError] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`errors` is the list to which the client's `error_cb` appends."""
        self._topic, self._client, self._timings, self._monotonic = topic, client, timings, monotonic
        self._errors: list[KafkaError] = [] if errors is None else errors
        self._asked: Future[TopicDescription] | None = None
        self._due = monotonic()
        self._missing_since: float | None = None
        self._topic_id: str | None = None

    def look(self) -> int | None:
        """Return the number of partitions if an answer has come since the last call. Never blocks.

        Raises `BrokerRefused` or `PositionLost`.
        """
        now = self._monotonic()
        self._client.poll(0)
        if self._asked is None:
            if now < self._due:
                return None
            known = self._topic_id is not None
            self._due = now + (self._timings.every_seconds if known else _FIRST_SECONDS)
            self._errors.clear()
            asked = self._client.describe_topics(
                TopicCollection([self._topic]), request_timeout=self._timings.answer_seconds
            )
            self._asked = asked[self._topic]
        if not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        try:
            found = answer.result()
        except KafkaException as error:
            self._judge(error.args[0], now)
            return None
        self._missing_since = None
        topic_id = str(found.topic_id)
        if self._topic_id not in {None, topic_id}:
            raise PositionLost(f"the topic {self._topic} was deleted and created again: its offsets mean other records")
        self._topic_id = topic_id
        return len(found.partitions)

    def _judge(self, error: KafkaError, now: float) -> None:
        """Raise the error if a retry cannot help."""
        # A request that no broker took ends in a time-out; the reason is among the client's errors.
        refused = [
            each for each in [error, *self._errors] if refusal_of(each) in {Refusal.CLIENT, Refusal.TOPIC_DENIED}
        ]
        what = f"the partitions of {self._topic} are unknown"
        if refused:
            raise broker_problem(what, refused[0])
        if refusal_of(error) is not Refusal.TOPIC:
            return
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= self._timings.missing_seconds:
            raise broker_problem(what, error)
