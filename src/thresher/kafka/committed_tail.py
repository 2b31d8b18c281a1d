"""Reads the committed records at the end of one partition, and proves that they were the last.

1. A `read_committed` reader reads from an offset to the end that was sampled when it began. Only the broker's
   end-of-partition event counts as the end; a time-out is an error, never "no records".
2. A broker that was stopped or cut off may still answer as the leader, with an old end. A caller that must not miss a
   record therefore has an **opener** committed after the end was sampled: an empty record with an unpredictable key or
   header. The reader reads until it finds the opener, so it has read everything that was committed before.
3. Empty records are left out, unless they have a key and the caller wants them.
4. Anybody may have written to the partition. The client fetches little at once, and decompresses at most 16 MB of zstd.
   A batch that it cannot decompress is stepped over: it is larger than any that our producers write.

Reading changes nothing, so a crash here has no effect.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from thresher.core.errors import ThresherError
from thresher.core.secrets import revealed_properties
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.problem import BrokerLost, BrokerRefused
from thresher.kafka.record_headers import RecordHeaders, headers_of
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.transactional import Produced
from thresher.kafka.unreadable_batch import unreadable_at, unreadable_from

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
_REQUEST_SECONDS = 15.0
# How often the client is made to ask for the partition's leader, until the opener is found.
_LEADER_SECONDS = 1.0
# No configuration may change these: everything that we read here is small.
_SMALL_FETCHES = {
    **bounded_fetches({}),
    # By default, the client waits a second after each record that fills its queue.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 50,
    "receive.message.max.bytes": 16_000_000,
}
# Offsets to go back at first. A transaction takes two, for its record and its marker; some take one.
_FIRST_STEP = 24


class TailUnread(ThresherError):  # noqa: N818
    """The end of the partition could not be read."""

    retryable: ClassVar[bool] = True


class TailRefused(ThresherError):  # noqa: N818
    """The broker refuses to let us read the partition. Somebody has to act."""

    exit_code: ClassVar[int] = 4


class TailGone(TailRefused):
    """The partition had records and is empty now: they were deleted. Somebody has to act."""


class TailRecord(NamedTuple):
    """A committed record. `appended_ms` is its time by the broker's clock; None where its producer set the time."""

    offset: int
    appended_ms: int | None
    key: bytes
    value: bytes
    headers: RecordHeaders


class Opener(NamedTuple):
    """The key and the headers that identify an opener."""

    key: bytes
    headers: RecordHeaders = ()

    @classmethod
    def of(cls, record: Produced) -> Self:
        """Return the opener for a record in the producer's form."""
        return cls(record[2] or b"", tuple(record[5] or ()))

    def is_in(self, message: Message) -> bool:
        """Whether a message is this opener."""
        if message.key() != self.key or message.value():
            return False
        # An interceptor of the caller's client may have added headers.
        return set(self.headers) <= set(headers_of(message))


def opener(topic: str, partition: int) -> tuple[Opener, Produced]:
    """Return a new opener, and its record in the producer's form."""
    record = (topic, b"", uuid.uuid4().bytes, partition, 0, None)
    return Opener.of(record), record


class CommittedTail:
    """One partition's committed records. A context manager."""

    def __init__(
        self,
        topic: str,
        partition: int,
        config: Mapping[str, Any],
        *,
        commit_opener: Callable[[], Opener] | None = None,
        request_seconds: float = _REQUEST_SECONDS,
    ) -> None:
        """`commit_opener` returns an opener that it commits to the partition, or has committed since `sample`.

        Without it, the sampled end is trusted. `request_seconds` limits each wait, for the end or the next record.
        """
        self._request_seconds = request_seconds
        self._topic, self._partition, self._commit_opener = topic, partition, commit_opener
        self._sampled = False
        self._opener: Opener | None = None
        # The partition's first offset, and its end: the sampled end, or the opener's offset once that was found.
        self.first = self.end = 0
        self._properties = {**config, "isolation.level": "read_committed", **_SMALL_FETCHES}
        self._consumer = Consumer(
            revealed_properties(
                {
                    "log_level": 2,
                    **self._properties,
                    "group.id": f"{topic}.recovery",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "allow.auto.create.topics": False,
                    "fetch.wait.max.ms": 10,
                }
            ),
            logger=_logger,
        )

    def __enter__(self) -> "CommittedTail":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the reader and its connections."""
        self._consumer.close()

    def last(self) -> TailRecord | None:
        """Return the last record, or None if there never was one. Raises `TailGone` if there was one."""
        for window in self.windows():
            last = None
            for record in window:
                last = record if record.value else last
            if last is not None:
                return last
        self.require_never_written()
        return None

    def windows(self) -> Iterator[Iterator[TailRecord]]:
        """Yield windows of the last records, each oldest first, each larger than the one before, up to all records.

        All windows have the same end. Empty records with a key are included, the opener too. A caller stops at the
        first window that has the wanted record.
        """
        first, end = self._bounds()
        return (self._read(start, end) for start in _starts(first, end))

    def require_never_written(self) -> None:
        """Raise `TailGone` if the partition ever had records. (Trimming always leaves the last one.)"""
        if self.first > 0:
            raise TailGone(
                f"{self._where} has lost its records, by its retention or by somebody's hand: delete the topic and "
                "let a new one be created ('thresher adopt'); what was published last may be published again"
            )

    def whole(self) -> Iterator[bytes]:
        """Yield the content of every committed record that is still there, oldest first."""
        return (record.value for record in self.records())

    def records(self) -> Iterator[TailRecord]:
        """Yield every committed record that is still there, oldest first."""
        first, end = self._bounds()
        return (record for record in self._read(first, end) if record.value)

    def sample(self) -> None:
        """Ask for the partition's end. A read has to reach at least this end. The opener must be committed later."""
        place = TopicPartition(self._topic, self._partition)
        try:
            found = self._consumer.get_watermark_offsets(place, timeout=self._request_seconds, cached=False)
        except KafkaException as error:
            raise self._problem(f"{self._where} has no known end", error.args[0]) from error
        if found is None:
            raise TailUnread(f"{self._where} has no known end: no answer in {self._request_seconds:g} s")
        self.first, self.end = found
        self._sampled = True

    def _bounds(self) -> tuple[int, int]:
        if self._opener is None:
            if self._commit_opener is None or not self._sampled:
                self.sample()
            if self._commit_opener is not None:
                # The opener comes after the sampled end, even if that end was outdated.
                self._opener = self._commit_opener()
        return self.first, self.end

    def _read(self, start: int, end: int) -> Iterator[TailRecord]:
        for message in self._messages(start):
            offset = message.offset() or 0
            if self._opener is None and offset >= end:
                # Compacted and aborted records are not returned, but the offset moves past them.
                return
            if message.error() is None and (message.value() or message.key()):
                yield _record(message)
            if self._opener is not None and message.error() is None and self._opener.is_in(message):
                self.end = offset
                return

    def _messages(self, start: int) -> Iterator[Message]:
        """Yield records and end-of-partition events as they come. Raises `TailUnread` if no record comes in time."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        asked = time.monotonic()
        deadline = asked + self._request_seconds
        try:
            while (now := time.monotonic()) <= deadline:
                # Waits for 500 records or 10 ms: at the end of the partition, it waits for the 10 ms.
                for message in self._consumer.consume(500, 0.01):
                    error = message.error()
                    if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        # The client asks for a group, which this reader does not need.
                        continue
                    if (first := unreadable_from(message)) is not None:
                        self._step_over(first)
                        deadline = time.monotonic() + self._request_seconds
                        # The other messages of this read are stale: reading begins again behind the batch.
                        break
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise self._problem(f"{self._where} cannot be read", error)
                    yield message
                    if error is None:
                        # Restarted after the caller's own work: only the broker's time counts.
                        deadline = time.monotonic() + self._request_seconds
                if self._opener is not None and now - asked > _LEADER_SECONDS:
                    asked = now
                    self._ask_for_leader()
            raise TailUnread(
                f"{self._where}: its end was not reached in {self._request_seconds:g} s; the broker is slow, or "
                "another program's open transaction hides it ('kafka-transactions.sh find-hanging')"
            )
        except KafkaException as caught:
            raise self._problem(f"{self._where} cannot be read", caught.args[0]) from caught
        finally:
            self._consumer.unassign()

    def _step_over(self, first: int) -> None:
        """Go on behind a batch that the client cannot read."""
        self._consumer.unassign()
        try:
            found = unreadable_at(self._topic, self._partition, first, self._properties)
        except BrokerLost as error:
            raise TailUnread(str(error)) from error
        except BrokerRefused as error:
            raise TailRefused(str(error)) from error
        _logger.warning("%s: the batch at offset %d cannot be decompressed, and is ignored", self._where, first)
        self._consumer.assign([TopicPartition(self._topic, self._partition, first if found is None else found.after)])

    def _ask_for_leader(self) -> None:
        """Make the client refresh the partition's leader: the broker that it reads from may be an outdated leader."""
        try:
            self._consumer.list_topics(self._topic, timeout=_LEADER_SECONDS)
        except KafkaException as error:
            _logger.debug("nobody said who leads %s: %s", self._where, error)

    def _problem(self, what: str, error: KafkaError) -> ThresherError:
        if refusal_of(error) in {Refusal.CLIENT, Refusal.TOPIC_DENIED}:
            return TailRefused(f"{what}: {error.str()}; grant Read and Describe on the topic, or mend the credentials")
        return TailUnread(f"{what}: {error.str()}")

    @property
    def _where(self) -> str:
        return f"partition {self._partition} of {self._topic}"


def _starts(first: int, end: int) -> Iterator[int]:
    """Yield offsets to start from, further and further back, down to the first offset."""
    step = _FIRST_STEP
    while end - step > first:
        yield end - step
        step *= 8
    yield first


def _record(message: Message) -> TailRecord:
    kind, at = message.timestamp()
    appended = at if kind == TIMESTAMP_LOG_APPEND_TIME else None
    return TailRecord(
        message.offset() or 0, appended, message.key() or b"", message.value() or b"", headers_of(message)
    )
