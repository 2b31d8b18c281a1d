"""Sends messages to a queue: records of the message topic with the queue's id as key, in random partitions.

A message with a delay does not go to the message topic at first. It is a Start in the marker topic, with an id that no
record has. When the delay has passed, the tracker writes the message to the message topic, as it does in a redelivery.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.refusal import is_refusal
from thresher.queue.message import MOST_SECONDS, MessageId, is_number
from thresher.queue.metrics import SEND_SECONDS, Figures
from thresher.queue.problem import MessageInvalid, QueueClosed, SendRefused, SendUnknown
from thresher.queue.sending.sent import Sent, unknown
from thresher.queue.sending.shared_producer import SharedProducer
from thresher.queue.wire.marker import SYNTHETIC, Marker, MarkerType, encode
from thresher.queue.wire.record import HEADER_BYTES, OWN, limit_headers

GivenHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
# The marker topic, and a function that returns a queue's marker partition.
MarkerPlace = tuple[str, Callable[[bytes], int]]
_MOST_DELIVERIES, _MOST_TTL_SECONDS = 1_000_000, 315_360_000.0


class QueueProducer:
    """Sends to one queue. Safe from any thread; a context manager."""

    def __init__(
        self,
        queue: bytes,
        topic: str,
        producer: SharedProducer,
        figures: Figures,
        *,
        delayed: MarkerPlace,
        most_bytes: int,
        seconds: float,
    ) -> None:
        self._queue, self._topic, self._producer, self._figures = queue, topic, producer, figures
        self._delayed = delayed
        self._most_bytes, self._seconds = most_bytes, seconds
        self._closed = False
        # Changed without a lock, to avoid contention between senders and reports: each change is atomic in the
        # interpreter.
        self._in_flight: set[Sent] = set()
        self._idle = threading.Condition()
        self._flushes = 0

    def send(
        self,
        payload: bytes | str,
        headers: GivenHeaders | None = None,
        *,
        delay: float = 0.0,
        max_deliveries: int | None = None,
        ttl: float | None = None,
    ) -> MessageId:
        """Send a message, and return its id once every in-sync replica has it.

        It is delivered after `delay` seconds, at most `max_deliveries` times, and not again once `ttl` seconds have
        passed since the start of its first delivery. A delay needs a running tracker.

        Raises `MessageInvalid` or `SendRefused` if the message is not in the queue, and `SendUnknown` if that is not
        known.
        """
        sent = self.send_async(payload, headers, delay=delay, max_deliveries=max_deliveries, ttl=ttl)
        try:
            # The client times out earlier, with a reason.
            return sent.result(self._seconds + 5.0)
        except FutureTimeout:
            raise SendUnknown(unknown(f"no answer in {self._seconds:g} s")) from None

    def send_async(
        self,
        payload: bytes | str,
        headers: GivenHeaders | None = None,
        callback: Callable[[Sent], None] | None = None,
        *,
        delay: float = 0.0,
        max_deliveries: int | None = None,
        ttl: float | None = None,
    ) -> Sent:
        """Send a message without waiting; return a future of its id. The future raises the errors of `send`.

        `callback` gets the future, in the thread that serves all sends: it must be quick.
        """
        if self._closed:
            raise QueueClosed("the producer was closed")
        try:
            content = payload.encode() if isinstance(payload, str) else payload
            given = _headers(headers) if headers else None
        except UnicodeEncodeError as error:
            raise MessageInvalid(f"the text cannot be encoded as UTF-8: {error}") from error
        self._require_valid(content, given)
        ttl_ms = _require_limits(delay, max_deliveries, ttl)
        sent = Sent(self, callback)
        self._in_flight.add(sent)
        try:
            if delay:
                self._delay(sent, content, given, delay, max_deliveries, ttl_ms)
            else:
                if limits := limit_headers(max_deliveries, ttl_ms):
                    given = [*(given or ()), *limits]
                self._producer.produce(self._topic, content, self._queue, sent, headers=given)
        except KafkaException as error:
            self._done(sent)
            self._figures.count("send_refused")
            raise SendRefused(f"the client refused the message: {error.args[0].str()}") from error
        except BaseException:
            self._done(sent)
            raise
        return sent

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every send is answered. Return False on timeout. Errors are raised by the futures.

        Must not be called from a callback: it would wait for itself.
        """
        with self._idle:
            self._flushes += 1
            try:
                return self._idle.wait_for(lambda: not self._in_flight, timeout)
            finally:
                self._flushes -= 1

    def close(self) -> None:
        """Accept no more sends, and wait for those in flight."""
        self._closed = True
        self.flush(self._seconds + 5.0)

    @property
    def closed(self) -> bool:
        """Whether `close` was called; it may still be running."""
        return self._closed

    def __enter__(self) -> "QueueProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answered(self, sent: Sent, error: KafkaError | None, sent_at: float) -> None:
        """Register the broker's answer. Called by the send's future."""
        if error is None:
            self._figures.observe(SEND_SECONDS, time.monotonic() - sent_at)
        else:
            self._figures.count("send_refused" if is_refusal(error) else "send_unknown")
            if error.code() == KafkaError._MSG_TIMED_OUT:
                self._producer.distrust()
        self._done(sent)

    def _delay(
        self,
        sent: Sent,
        payload: bytes,
        headers: list[tuple[str, bytes | None]] | None,
        delay: float,
        max_deliveries: int | None,
        ttl_ms: int | None,
    ) -> None:
        """Write the Start of a message that the tracker writes to the message topic after the delay."""
        topic, partition_of = self._delayed
        sent.message_id = MessageId(SYNTHETIC, random.getrandbits(62))
        marker = Marker(
            type=MarkerType.START,
            message_id=sent.message_id,
            # Rounded up, so that the message is never early.
            redeliver_after_ms=math.ceil(delay * 1000),
            key=self._queue,
            value=payload,
            headers=tuple(headers or ()),
            origin_id=sent.message_id,
            enqueued_at_ms=int(time.time() * 1000),
            undelivered=True,
            max_deliveries=max_deliveries,
            ttl_ms=ttl_ms,
        )
        self._producer.produce(topic, encode(marker), self._queue, sent, partition=partition_of(self._queue))

    def _done(self, sent: Sent) -> None:
        self._in_flight.discard(sent)
        # A `flush` that begins after this check checks `_in_flight` itself.
        if self._flushes and not self._in_flight:
            with self._idle:
                self._idle.notify_all()

    def _require_valid(self, payload: Any, headers: list[tuple[str, bytes | None]] | None) -> None:
        if not isinstance(payload, bytes):
            raise MessageInvalid(f"a payload is bytes or text, not {type(payload).__name__}")
        size = len(payload) + len(self._queue)
        if headers is not None:
            size += sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in headers)
        if size > self._most_bytes:
            raise MessageInvalid(
                f"the message has {size:,} bytes and at most {self._most_bytes:,} are allowed: send less, "
                "or raise max-message-bytes here and max.message.bytes of the topics ('thresher queue init' checks it)"
            )


def _require_limits(delay: float, max_deliveries: int | None, ttl: float | None) -> int | None:
    """Return the ttl in milliseconds. Raises `MessageInvalid` if the delay or a limit is out of range."""
    if not is_number(delay) or not 0 <= delay <= MOST_SECONDS:
        raise MessageInvalid(f"a delay of 0 to {MOST_SECONDS:g} seconds is needed, not {delay}")
    if max_deliveries is not None and not (type(max_deliveries) is int and 1 <= max_deliveries <= _MOST_DELIVERIES):
        raise MessageInvalid(f"max_deliveries is a number from 1 to {_MOST_DELIVERIES:,}, not {max_deliveries}")
    if ttl is not None and not (is_number(ttl) and 0.001 <= ttl <= _MOST_TTL_SECONDS):
        raise MessageInvalid(f"a ttl of 0.001 to {_MOST_TTL_SECONDS:g} seconds is needed, not {ttl}")
    return None if ttl is None else math.ceil(ttl * 1000)


def _headers(given: GivenHeaders) -> list[tuple[str, bytes | None]]:
    try:
        pairs = [(name, value) for name, value in (given.items() if isinstance(given, Mapping) else given)]
    except (TypeError, ValueError):
        raise MessageInvalid("headers are a mapping, or pairs of a name and a value") from None
    headers = []
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | str | None):
            raise MessageInvalid(
                f"a header needs a name of text, and a value of bytes, text or None: {name!r} is wrong"
            )
        if name in OWN:
            raise MessageInvalid(f"the header name {name!r} is reserved: use another name")
        name.encode()  # raises the error that the client would raise
        headers.append((name, value.encode() if isinstance(value, str) else value))
    return headers
