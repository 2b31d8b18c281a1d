"""The messages of one consumer that are started and not settled, and the markers that tell of them.

1. A message is settled once: the first ack, nack or reject counts, and nothing follows it. Marker and bookkeeping
   happen under one lock, so no KeepAlive gets behind an End.
2. Until then a KeepAlive goes out at half of the redelivery time-out, also while the message waits in the buffer.
3. `give_back` ends all that are left, at once and without an ack: the tracker redelivers them. Messages that no
   application has seen are marked so, and do not count as delivered.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from thresher.queue.markers import Markers
from thresher.queue.message import Ack, Message, MessageId, Nack, Reject, Settlement
from thresher.queue.metrics import RECEIVE_TO_ACK_SECONDS, Figures
from thresher.queue.problem import AlreadySettled, MarkerUnknown, QueueClosed
from thresher.queue.wire.marker import Marker, MarkerType
from thresher.queue.wire.record import Record


@dataclass(slots=True)
class _Entry:
    # The partition of the message's Start.
    partition: int
    # When the next KeepAlive is due; until when the application has extended the message; when it was received.
    due: float
    extended: float = 0.0
    received: float | None = None


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
        self._entries: dict[MessageId, _Entry] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def started(self, records: Sequence[Record], partition: int, at: float) -> list[Message]:
        """Take in records whose Starts are committed since `at`, in that partition, and return their messages."""
        messages = [
            Message(
                queue=self._queue,
                payload=record.payload,
                headers=record.headers,
                message_id=record.message_id,
                origin_id=record.origin_id,
                delivery_count=record.delivery_count,
                enqueued_at_ms=record.enqueued_at_ms,
                progress=self,
            )
            for record in records
        ]
        due = at + self._redelivery_seconds / 2
        with self._lock:
            for record in records:
                self._entries[record.message_id] = _Entry(partition, due)
        return messages

    def received(self, messages: Iterable[Message]) -> None:
        """Take in that the application has these messages now."""
        now, count = self._monotonic(), 0
        for message in messages:
            count += 1
            if (entry := self._entries.get(message.id)) is not None:
                entry.received = now
        self._figures.count("consumed", count)

    def settle(self, message: Message, settlement: Settlement, *, sync: bool) -> None:
        """End a message's progress."""
        with self._lock:
            entry = self._require(message)
            confirmed = self._markers.confirmation() if sync else None
            # If this raises, the message stays in progress, and may be settled again.
            self._markers.send(self._queue, entry.partition, _marker(message.id, settlement), confirmed)
            del self._entries[message.id]
        match settlement:
            case Ack():
                self._figures.count("acked")
                if entry.received is not None:
                    RECEIVE_TO_ACK_SECONDS.observe(self._figures, self._monotonic() - entry.received)
            case Nack():
                self._figures.count("given_back")
            case Reject():
                self._figures.count("rejected")
        if confirmed is not None:
            confirmed.wait()

    def extend(self, message: Message, seconds: float) -> None:
        """Put the redelivery off."""
        with self._lock:
            entry = self._require(message)
            entry.extended = max(entry.extended, self._monotonic() + seconds)
            self._keep_alive(message.id, entry)

    def keep_alive(self) -> None:
        """Send the KeepAlives that are due."""
        now = self._monotonic()
        with self._lock:
            for message_id, entry in self._entries.items():
                if entry.due <= now:
                    self._keep_alive(message_id, entry)
                    entry.due = now + self._redelivery_seconds / 2

    def give_back(self) -> None:
        """End all that are left: each is redelivered at once. Later calls for them raise `QueueClosed`."""
        with self._lock:
            self._closed = True
            left, self._entries = self._entries, {}
            for message_id, entry in left.items():
                marker = Marker(
                    type=MarkerType.KEEPALIVE, message_id=message_id, undelivered=entry.received is None
                )  # fmt: skip
                try:
                    self._markers.send(self._queue, entry.partition, marker)
                except MarkerUnknown:
                    # It is redelivered after the time-out; the others need not wait for that.
                    self._figures.count("markers_unknown")
        self._figures.count("given_back", len(left))

    def _require(self, message: Message) -> _Entry:
        if (entry := self._entries.get(message.id)) is not None:
            return entry
        if self._closed:
            raise QueueClosed(f"message {message.id} was given back: its consumer is closed")
        raise AlreadySettled(f"message {message.id} was acked, nacked or rejected before")

    def _keep_alive(self, message_id: MessageId, entry: _Entry) -> None:
        left = max(self._redelivery_seconds, entry.extended - self._monotonic())
        marker = Marker(type=MarkerType.KEEPALIVE, message_id=message_id, redeliver_after_ms=int(left * 1000))
        try:
            self._markers.send(self._queue, entry.partition, marker)
        except MarkerUnknown:
            # The next one may get through; without any, the message is redelivered.
            self._figures.count("markers_unknown")
        self._figures.count("keep_alives")


def _marker(message_id: MessageId, settlement: Settlement) -> Marker:
    match settlement:
        case Ack():
            return Marker(type=MarkerType.END, message_id=message_id)
        case Nack(delay):
            return Marker(type=MarkerType.KEEPALIVE, message_id=message_id, redeliver_after_ms=int(delay * 1000))
        case Reject(reason):
            return Marker(type=MarkerType.KEEPALIVE, message_id=message_id, reject_reason=reason)
