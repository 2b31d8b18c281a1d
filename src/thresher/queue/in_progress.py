"""The messages of one consumer that are started and not settled, and the markers that report their progress.

1. A message is settled once, by the first ack, nack or reject. No marker of the message follows: sending the marker and
   removing the message share one lock, so no KeepAlive comes after an End.
2. Until then a KeepAlive is sent at half of the redelivery time-out, even while the message waits in the buffer. The
   next one is sent only after the broker has answered the last one.
3. A message whose KeepAlives were not confirmed in time may have been redelivered. If the application has not received
   it yet, the message is given back instead of delivered.
4. `give_back` ends all remaining messages without an ack: the tracker redelivers them at once. A message that no
   application has received is marked as such, and this delivery does not count.
5. A marker identifies its message by its id, its origin id and the time of sending. Ids repeat when the message topic
   is recreated, and the ack of an old message must not end a new one.

Only a sync settlement waits for the broker, and it holds no lock meanwhile.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError

from thresher.queue.markers import Markers
from thresher.queue.message import Ack, Message, Nack, Reject, Settlement
from thresher.queue.metrics import Figures
from thresher.queue.problem import AlreadySettled, MarkerUnknown, QueueClosed
from thresher.queue.wire.marker import Marker, MarkerType
from thresher.queue.wire.record import Record


@dataclass(slots=True)
class _Entry:
    # The marker partition of the message's Start.
    partition: int
    # When the next KeepAlive is due; and until when the tracker waits, as far as the broker has confirmed.
    due: float
    alive_until: float
    # Until when the application has extended the message; and when the application received it.
    extended: float = 0.0
    received: float | None = None
    # The KeepAlive that the broker has not answered yet.
    unanswered: Marker | None = None


class InProgress:
    """Implements `Progress` by sending markers. Safe from any thread."""

    def __init__(
        self,
        queue: bytes,
        markers: Markers,
        figures: Figures,
        *,
        redelivery_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._markers, self._figures = queue, markers, figures
        self._redelivery_seconds = redelivery_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # The key is the message object, because another message may get the same id.
        self._entries: dict[Message, _Entry] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def started(self, records: Sequence[Record], partition: int, at: float) -> list[Message]:
        """Add records whose Starts, in this marker partition, are committed, and return their messages.

        `at` is the time before the Starts were written: KeepAlives are due from then on.
        """
        messages = [Message.of(record, self._queue, self) for record in records]
        due, alive_until = at + self._redelivery_seconds / 2, at + self._redelivery_seconds
        with self._lock:
            for message in messages:
                self._entries[message] = _Entry(partition, due, alive_until)
        if self._closed:
            # The messages arrived during or after the consumer's `close`.
            self.give_back()
        return messages

    def received(self, messages: Iterable[Message]) -> list[Message]:
        """Register that the application receives these messages now, and return those that it may have."""
        now, found = self._monotonic(), []
        with self._lock:
            for message in messages:
                entry = self._entries.get(message)
                if entry is None:
                    continue
                if entry.alive_until < now:
                    self._expire(message, entry)
                    continue
                entry.received = now
                found.append(message)
        self._figures.count("consumed", len(found))
        return found

    def settle(self, message: Message, settlement: Settlement, *, sync: bool) -> None:
        """Settle a message."""
        confirmed = self._markers.confirmation() if sync else None
        answered = None if confirmed is None else confirmed.answer
        with self._lock:
            entry = self._require(message)
            # Removed even if the marker cannot be sent: kept alive without end, the message would reach nobody.
            del self._entries[message]
            self._markers.settle(self._queue, entry.partition, _marker(message, settlement), answered)
        self._figures.settled(settlement, None if entry.received is None else self._monotonic() - entry.received)
        if confirmed is not None:
            confirmed.wait()

    def extend(self, message: Message, seconds: float) -> None:
        """Prevent redelivery for at least `seconds` from now."""
        with self._lock:
            entry = self._require(message)
            entry.extended = max(entry.extended, self._monotonic() + seconds)
            self._keep_alive(message, entry)

    def keep_alive(self) -> None:
        """Send the KeepAlives that are due."""
        now = self._monotonic()
        with self._lock:
            due = [each for each, entry in self._entries.items() if entry.due <= now and entry.unanswered is None]
        for message in due:
            # The lock is taken for each message, so that an ack does not wait for all KeepAlives.
            with self._lock:
                entry = self._entries.get(message)
                if entry is None:
                    continue
                if entry.received is None and entry.alive_until < now:
                    self._expire(message, entry)
                else:
                    entry.due = now + self._redelivery_seconds / 2
                    self._keep_alive(message, entry)

    def give_back(self) -> None:
        """Give back all remaining messages: each is redelivered at once. Later calls for them raise `QueueClosed`."""
        with self._lock:
            self._closed = True
            left, self._entries = self._entries, {}
            for message, entry in left.items():
                self._return(message, entry)
        self._figures.count("given_back", len(left))

    def _require(self, message: Message) -> _Entry:
        if (entry := self._entries.get(message)) is not None:
            return entry
        if self._closed:
            raise QueueClosed(f"message {message.id} was given back: its consumer is closed")
        raise AlreadySettled(f"message {message.id} was acked, nacked or rejected before")

    def _keep_alive(self, message: Message, entry: _Entry) -> None:
        now = self._monotonic()
        left = max(self._redelivery_seconds, entry.extended - now)
        marker = _marker_of(message, MarkerType.KEEPALIVE)
        marker.redeliver_after_ms = int(left * 1000)

        def answered(error: KafkaError | None) -> None:
            # A late confirmation does not help: the message may have been redelivered already.
            if error is None and self._monotonic() <= entry.alive_until:
                entry.alive_until = max(entry.alive_until, now + left)
            if entry.unanswered is marker:
                if error is not None:
                    entry.due = now
                entry.unanswered = None

        entry.unanswered = marker
        # If the KeepAlive cannot be queued, `answered` gets an error, and the next one may succeed.
        self._markers.keep_alive(self._queue, entry.partition, marker, answered)

    def _expire(self, message: Message, entry: _Entry) -> None:
        """Give back a message that waited in the buffer without a confirmed KeepAlive for the redelivery time-out."""
        del self._entries[message]
        self._return(message, entry)
        self._figures.count("expired")

    def _return(self, message: Message, entry: _Entry) -> None:
        """Have the tracker redeliver a message at once."""
        marker = _marker_of(message, MarkerType.KEEPALIVE)
        marker.undelivered, marker.released = entry.received is None, True
        # If the marker cannot be queued, the tracker redelivers the message after the time-out. The other messages go
        # on.
        with contextlib.suppress(MarkerUnknown):
            self._markers.settle(self._queue, entry.partition, marker)


def _marker(message: Message, settlement: Settlement) -> Marker:
    if isinstance(settlement, Ack):
        return _marker_of(message, MarkerType.END)
    marker = _marker_of(message, MarkerType.KEEPALIVE)
    match settlement:
        case Nack(delay):
            marker.redeliver_after_ms, marker.released = math.ceil(delay * 1000), True
        case Reject(reason):
            marker.reject_reason = reason
    return marker


def _marker_of(message: Message, type_: MarkerType) -> Marker:
    return Marker(
        type=type_, message_id=message.id, origin_id=message.origin_id, enqueued_at_ms=message.enqueued_at_ms
    )  # fmt: skip
