"""The messages of one consumer that are started and not settled, and the markers that tell of them.

1. A message is settled once: the first ack, nack or reject counts, and nothing follows it. Marker and bookkeeping
   happen under one lock, so no KeepAlive gets behind an End.
2. Until then a KeepAlive goes out at half of the redelivery time-out, also while the message waits in the buffer; none
   while the last one is not answered.
3. A message that no KeepAlive reached in time may be redelivered already: an application that has not received it does
   not get it. It is given back.
4. `give_back` ends all that are left, at once and without an ack: the tracker redelivers them. Messages that no
   application has seen are marked so, and do not count as delivered.
5. A marker names its message by its id, its origin id and when it was sent. Where the message topic was made anew, ids
   come again: the ack of an old message ends no new one.

Nothing here waits for the broker but a sync settlement, which holds no lock.
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
    # The partition of the message's Start.
    partition: int
    # When the next KeepAlive is due, and until when the tracker waits, as far as the broker has confirmed.
    due: float
    alive_until: float
    # Until when the application has extended the message; when it was received.
    extended: float = 0.0
    received: float | None = None
    # The KeepAlive that the broker has not answered.
    unanswered: Marker | None = None


class InProgress:
    """Implements `Progress` with markers. Safe from any thread."""

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
        # By the message itself: another one may come to have its id.
        self._entries: dict[Message, _Entry] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def started(self, records: Sequence[Record], partition: int, at: float) -> list[Message]:
        """Take in records whose Starts are committed since `at`, in that partition, and return their messages."""
        messages = [Message.of(record, self._queue, self) for record in records]
        due, alive_until = at + self._redelivery_seconds / 2, at + self._redelivery_seconds
        with self._lock:
            for message in messages:
                self._entries[message] = _Entry(partition, due, alive_until)
        if self._closed:
            # They came while the consumer was closed, or after it.
            self.give_back()
        return messages

    def received(self, messages: Iterable[Message]) -> list[Message]:
        """Take in that the application gets these messages now, and return those that it may have."""
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
        """End a message's progress."""
        confirmed = self._markers.confirmation() if sync else None
        answered = None if confirmed is None else confirmed.answer
        with self._lock:
            entry = self._require(message)
            # Where this raises too: kept alive for ever, the message would come to nobody.
            del self._entries[message]
            self._markers.settle(self._queue, entry.partition, _marker(message, settlement), answered)
        self._figures.settled(settlement, None if entry.received is None else self._monotonic() - entry.received)
        if confirmed is not None:
            confirmed.wait()

    def extend(self, message: Message, seconds: float) -> None:
        """Put the redelivery off."""
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
            # The lock for each of them: an ack does not wait for all.
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
        """End all that are left: each is redelivered at once. Later calls for them raise `QueueClosed`."""
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
            # One that came too late brings nothing back: the message may be redelivered already.
            if error is None and self._monotonic() <= entry.alive_until:
                entry.alive_until = max(entry.alive_until, now + left)
            if entry.unanswered is marker:
                if error is not None:
                    entry.due = now
                entry.unanswered = None

        entry.unanswered = marker
        # One that is not queued is answered too: the next one may get through; without any, the message is redelivered.
        self._markers.keep_alive(self._queue, entry.partition, marker, answered)

    def _expire(self, message: Message, entry: _Entry) -> None:
        """Give back a message that waited here for too long."""
        del self._entries[message]
        self._return(message, entry)
        self._figures.count("expired")

    def _return(self, message: Message, entry: _Entry) -> None:
        """Have a message redelivered at once."""
        marker = _marker_of(message, MarkerType.KEEPALIVE)
        marker.undelivered, marker.released = entry.received is None, True
        # If that is not queued, it is redelivered after the time-out; the others need not wait for that.
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
