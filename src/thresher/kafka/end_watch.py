"""Asks for the high watermarks of partitions again and again, while whoever wants to know them does something else.

A broker that does not answer is asked again. Each answer comes with the moment at which it was asked for: what was
written before that moment lies before the watermark. A broker that was cut off may answer with an old one.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

# An answer that has not come by then is not waited for. The client answers for all partitions at once: one whose leader
# is away must not keep the others waiting for long.
_ANSWER_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# Answers that nobody has taken: of a partition, those of the last minute are plenty.
_MOST_ANSWERS = 100_000


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


class EndWatcher:
    """A watch with a thread of its own: a reader that is busy for long asks all the same.

    So a gap between two answers is the broker's silence, or this process was stopped.
    """

    def __init__(self, watch: EndWatch) -> None:
        self._watch = watch
        self._partitions: tuple[int, ...] = ()
        self._answers: deque[HighWatermark] = deque(maxlen=_MOST_ANSWERS)
        self._failed: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thresher-end-watch", daemon=True)

    def __enter__(self) -> "EndWatcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_ANSWER_SECONDS)

    def answers(self, partitions: Iterable[int]) -> list[HighWatermark]:
        """Return the answers that have come since the last call, in order; these partitions are asked for from now on.

        Raises what ended the thread.
        """
        if self._failed is not None:
            raise self._failed
        self._partitions = tuple(partitions)
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def _run(self) -> None:
        try:
            while not self._stop.wait(_LOOK_SECONDS):
                self._answers.extend(self._watch.look(self._partitions))
        except Exception as error:  # noqa: BLE001 - it is raised where the answers are wanted
            self._failed = error
