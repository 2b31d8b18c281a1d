"""Asks for the high watermarks of partitions at intervals, without blocking the caller.

A broker that does not answer is asked again. Each answer has the time of its request: records written before that time
are below the watermark. A broker that was cut off may answer with an old watermark.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

# The time-out of a request. The client answers for all partitions at once, so one partition whose leader is down must
# not delay the others for long.
_ANSWER_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# The most answers that are kept until the caller takes them. Older ones are dropped.
_MOST_ANSWERS = 100_000


class HighWatermark(NamedTuple):
    """A partition's high watermark, as it was at some time after the request at `asked_at`."""

    partition: int
    asked_at: float
    offset: int


class EndWatch:
    """The high watermarks of one topic's partitions, asked for at intervals. For one thread."""

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
        # The outstanding requests by partition, and their time.
        self._asked: dict[int, Future[Any]] = {}
        self._asked_at = 0.0

    def look(self, partitions: Iterable[int]) -> list[HighWatermark]:
        """Return the answers that have come since the last call, and ask again when it is time. Never blocks."""
        self._client.poll(0)
        found = []
        for partition, answer in [each for each in self._asked.items() if each[1].done()]:
            del self._asked[partition]
            try:
                found.append(HighWatermark(partition, self._asked_at, answer.result().offset))
            except KafkaException:
                # The partition's leader moves or is down: the next request may be answered.
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
    """A watch with a thread of its own, which asks even while the reader is busy.

    So a gap between two answers means that the broker did not answer, or that this process was stopped.
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
        """Return the answers that have come since the last call, in order. From now on, ask for these partitions.

        Raises the error that ended the thread, if any.
        """
        if self._failed is not None:
            raise self._failed
        self._partitions = tuple(partitions)
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def _run(self) -> None:
        try:
            while not self._stop.wait(_LOOK_SECONDS):
                self._answers.extend(self._watch.look(self._partitions))
        except Exception as error:  # noqa: BLE001 - `answers` raises it
            self._failed = error
