"""Asks for the high watermarks of partitions again and again, without ever blocking the thread that looks.

A broker that does not answer is asked again. Each answer comes with the moment at which it was asked for: what was
written before that moment lies before the watermark. A broker that was cut off may answer with an old one.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

# An answer that has not come by then is not waited for. The client answers for all partitions at once: one whose leader
# is away must not keep the others waiting for long.
_ANSWER_SECONDS = 1.0


class HighWatermark(NamedTuple):
    """A partition's high watermark, as it was at some moment after it was asked for."""

    partition: int
    asked_at: float
    offset: int


class EndWatch:
    """The high watermarks of one topic's partitions, as the cluster tells them from time to time. For one thread."""

    def __init__(
        self,
        topic: str,
        client: AdminClient,
        *,
        every_seconds: float = 0.5,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._client = topic, client
        self._every, self._monotonic = every_seconds, monotonic
        self._due = monotonic()
        # What was asked, by partition; and when.
        self._asked: dict[int, Future[Any]] = {}
        self._asked_at = 0.0

    def look(self, partitions: Iterable[int]) -> list[HighWatermark]:
        """Return the answers that have come since the last look, and ask again when it is time. Never blocks."""
        self._client.poll(0)
        found = []
        for partition, answer in [each for each in self._asked.items() if each[1].done()]:
            del self._asked[partition]
            try:
                found.append(HighWatermark(partition, self._asked_at, answer.result().offset))
            except KafkaException:
                # Its leader moves, or is gone: the next question may be answered.
                continue
        now = self._monotonic()
        if now >= self._due and (not self._asked or now - self._asked_at > _ANSWER_SECONDS):
            self._ask(partitions, now)
        return found

    def _ask(self, partitions: Iterable[int], now: float) -> None:
        places = {TopicPartition(self._topic, each): OffsetSpec.latest() for each in partitions}
        self._due, self._asked_at, self._asked = now + self._every, now, {}
        if places:
            answers = self._client.list_offsets(
                places, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_ANSWER_SECONDS
            )
            self._asked = {place.partition: answer for place, answer in answers.items()}
