"""Reads the committed end of one partition, and proves that it was the end.

A `read_committed` reader goes from an offset to the end that was sampled when it began. Only the broker's
end-of-partition event counts as the end; a time-out is an error, never "nothing there". Empty records are left out.
Reading changes nothing, so a crash here has no effect.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from thresher.core.errors import ThresherError
from thresher.kafka.refusal import Refusal, refusal_of

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
_REQUEST_SECONDS = 15.0
# Offsets to go back at first. A transaction takes two, for its record and its marker; some take one.
_FIRST_STEP = 24


class TailUnread(ThresherError):  # noqa: N818
    """The end of the partition could not be read."""

    retryable: ClassVar[bool] = True


class TailRefused(ThresherError):  # noqa: N818
    """The broker refuses to let us read the partition. Somebody has to act."""

    exit_code: ClassVar[int] = 4


class TailGone(TailRefused):
    """The partition had records and has none: they were removed. Somebody has to act."""


class CommittedTail:
    """One partition's committed records. A context manager."""

    def __init__(self, topic: str, partition: int, config: Mapping[str, Any], *, fenced: bool = True) -> None:
        """`fenced`: no producer can have a transaction open there, so that an open one is an error."""
        self._topic, self._partition, self._fenced = topic, partition, fenced
        self._config = config
        # The offset of the last record that was read.
        self.offset = -1
        # Its time by the broker's clock; None where its producer set the time, which may be wrong.
        self.appended_ms: int | None = None
        self._consumer = Consumer(
            {
                "log_level": 2,
                **config,
                "group.id": f"{topic}.recovery",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 10,
            },
            logger=_logger,
        )

    def __enter__(self) -> "CommittedTail":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def last(self) -> bytes | None:
        """Return the last committed record, or None if there never was one. Raises `TailGone` if it was removed."""
        first, end = self._bounds()
        step = _FIRST_STEP
        while True:
            start = max(first, end - step)
            last = None
            for last in self._read(start, end):  # noqa: B007 - the last one is wanted
                pass
            if last is None and start == first > 0:
                # Our own trimming always leaves the last record.
                raise TailGone(
                    f"{self._where} has lost its records, by its retention or by somebody's hand: delete the topic and "
                    "let a new one be made ('thresher adopt'); what was published last may be published again"
                )
            if last is not None or start == first:
                return last
            step *= 8

    def whole(self) -> Iterator[bytes]:
        """Yield every committed record that is still there, oldest first."""
        first, end = self._bounds()
        return self._read(first, end)

    def _bounds(self) -> tuple[int, int]:
        place = TopicPartition(self._topic, self._partition)
        try:
            found = self._consumer.get_watermark_offsets(place, timeout=_REQUEST_SECONDS, cached=False)
        except KafkaException as error:
            raise self._problem(f"{self._where} has no known end", error.args[0]) from error
        if found is None:
            raise TailUnread(f"{self._where} has no known end: no answer in {_REQUEST_SECONDS:g} s")
        return (found[0], self._end(place)) if self._fenced else found

    def _end(self, place: TopicPartition) -> int:
        """Return the high watermark. The consumer's own end stops at an open transaction."""
        client = AdminClient({"log_level": 2, **self._config}, logger=_logger)
        asked = client.list_offsets(
            {place: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_REQUEST_SECONDS,
        )
        try:
            return int(asked[place].result().offset)
        except KafkaException as error:
            raise self._problem(f"{self._where} has no known end", error.args[0]) from error

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        deadline = time.monotonic() + _REQUEST_SECONDS
        try:
            while True:
                # It waits for 500 records or 10 ms: the end of the partition costs the 10 ms.
                for message in self._consumer.consume(500, 0.01):
                    if (error := message.error()) is None:
                        deadline = time.monotonic() + _REQUEST_SECONDS
                        if value := message.value():
                            self.offset = message.offset() or 0
                            kind, at = message.timestamp()
                            self.appended_ms = at if kind == TIMESTAMP_LOG_APPEND_TIME else None
                            yield value
                            # The caller's own work does not count against the broker.
                            deadline = time.monotonic() + _REQUEST_SECONDS
                    elif error.code() == KafkaError._PARTITION_EOF:
                        # Compacted and aborted records leave no record behind, but the position passes them.
                        if (message.offset() or 0) >= end:
                            return
                    elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                        # The client asks for a group, which this reader does not need.
                        raise self._problem(f"{self._where} cannot be read", error)
                if time.monotonic() > deadline:
                    raise TailUnread(f"{self._where}: its end was not reached in {_REQUEST_SECONDS:g} s")
        except KafkaException as error:
            raise self._problem(f"{self._where} cannot be read", error.args[0]) from error
        finally:
            self._consumer.unassign()

    def _problem(self, what: str, error: KafkaError) -> ThresherError:
        if refusal_of(error) in {Refusal.CLIENT, Refusal.TOPIC_DENIED}:
            return TailRefused(f"{what}: {error.str()}; grant Read and Describe on the topic, or mend the credentials")
        return TailUnread(f"{what}: {error.str()}")

    @property
    def _where(self) -> str:
        return f"partition {self._partition} of {self._topic}"
