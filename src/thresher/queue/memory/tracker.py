"""The messages of queues in memory, and which consumer has each: the broker's part, and the tracker's."""

import heapq
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.configuration import QueueConfig
from thresher.queue.limits import limit_of_all, limits_by_queue
from thresher.queue.message import Ack, Headers, Message, MessageId, Nack, Progress, Reject, Settlement
from thresher.queue.problem import AlreadySettled, QueueClosed
from thresher.queue.wire.marker import Marker
from thresher.queue.wire.record import Record, record_of

# How many messages a consumer starts ahead of its application: as many as one on Kafka does at first.
_AHEAD = 8
# How often the thread looks at the clock while messages are delayed: a test's clock may be set forward at any time.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was rejected, or is past its limits. `id` and `delivery_count` are those of its last delivery."""

    queue: bytes
    payload: bytes
    headers: Headers
    id: MessageId
    origin_id: MessageId
    delivery_count: int
    enqueued_at_ms: int
    reason: str


@dataclass(slots=True)
class Started:
    """A message in progress, and when its application received it."""

    record: Record
    received: float | None = None


@dataclass(slots=True, eq=False)
class Share:
    """What one consumer has of its queue. The tracker's, and behind its lock."""

    queue: bytes
    buffer: ReceiveBuffer
    progress: Progress
    entries: dict[MessageId, Started] = field(default_factory=dict)
    started: int = 0
    left: bool = False


@dataclass(slots=True)
class _QueueState:
    waiting: deque[Record] = field(default_factory=deque)
    shares: list[Share] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)


class MemoryTracker:
    """Every message of a service, and who has it. Safe from any thread: one lock holds all."""

    def __init__(self, config: QueueConfig, monotonic: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._ahead = min(_AHEAD, config.consumer_receive_buffer_capacity)
        self._max_in_progress = config.max_in_progress
        self._limit, self._limits = limit_of_all(config), limits_by_queue(config)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        # Consumers wait here for messages too: see `MemoryBuffer`.
        self.changed = threading.Condition()
        self._queues: defaultdict[bytes, _QueueState] = defaultdict(_QueueState)
        self._offsets = itertools.count()
        # Messages that come later, by the time that they are due, and whether their last delivery counts; numbers break
        # ties.
        self._delayed: list[tuple[float, int, bytes, Record, bool]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, queue: bytes, payload: bytes, headers: Headers) -> MessageId:
        """Take in a new message. Raises `QueueClosed`."""
        with self.changed:
            if self._closed:
                raise QueueClosed("the service was closed")
            message_id = self._new_id()
            record = record_of(message_id, payload, headers, int(self._wall_clock() * 1000))
            self._queues[queue].waiting.append(record)
            self._hand_out(queue)
        return message_id

    def delay(self, start: Marker) -> None:
        """Take in a message that is to come later. Raises `QueueClosed`."""
        with self.changed:
            if self._closed:
                raise QueueClosed("the service was closed")
            record = Record(
                message_id=start.message_id,
                payload=start.value,
                headers=start.headers,
                delivery_count=1,
                origin_id=start.message_id,
                enqueued_at_ms=int(self._wall_clock() * 1000),
                max_deliveries=start.max_deliveries,
                ttl_ms=start.ttl_ms,
            )
            self._redeliver(start.key, record, start.redeliver_after_ms / 1000, delivered=False)

    def dead_letters(self, queue: bytes) -> tuple[DeadLetter, ...]:
        """Return a queue's dead letters."""
        with self.changed:
            return tuple(self._queues[queue].dead) if queue in self._queues else ()

    def join(self, share: Share) -> None:
        """Have a consumer get messages."""
        with self.changed:
            self._queues[share.queue].shares.append(share)
            self._hand_out(share.queue)

    def leave(self, share: Share) -> None:
        """Let a consumer get no further messages."""
        with self.changed:
            shares = self._queues[share.queue].shares
            if share in shares:
                shares.remove(share)

    def received(self, share: Share, messages: Iterable[Message]) -> None:
        """Take in that the consumer's application has these messages now."""
        with self.changed:
            now = self._monotonic()
            for message in messages:
                if (entry := share.entries.get(message.id)) is not None:
                    entry.received = now
            self._hand_out(share.queue)

    def require(self, share: Share, message: Message) -> Started:
        """Return a message in progress. Raises `AlreadySettled` or `QueueClosed`."""
        with self.changed:
            if (entry := share.entries.get(message.id)) is not None:
                return entry
            if share.left:
                raise QueueClosed(f"message {message.id} was given back: its consumer is closed")
            raise AlreadySettled(f"message {message.id} was acked, nacked or rejected before")

    def settle(self, share: Share, message: Message, settlement: Settlement) -> float | None:
        """End a message's progress; return how many seconds after its application received it."""
        with self.changed:
            entry = self.require(share, message)
            match settlement:
                case Ack():
                    pass
                case Nack(delay):
                    self._redeliver(share.queue, entry.record, delay, delivered=True)
                case Reject(reason):
                    self._queues[share.queue].dead.append(_dead_letter(share.queue, entry.record, reason))
            del share.entries[message.id]
            self._hand_out(share.queue)
            return None if entry.received is None else self._monotonic() - entry.received

    def give_back(self, share: Share) -> int:
        """End all that a consumer has left: each is redelivered at once. Return how many they are."""
        with self.changed:
            share.left = True
            left, share.entries = share.entries, {}
            for entry in left.values():
                delivered = entry.received is not None
                self._redeliver(share.queue, entry.record, 0.0, delivered=delivered)
            self._hand_out(share.queue)
        return len(left)

    def look(self) -> None:
        """Redeliver what is due by now."""
        with self.changed:
            now = self._monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                _, _, queue, record, delivered = heapq.heappop(self._delayed)
                self._redeliver(queue, record, 0.0, delivered=delivered)
                self._hand_out(queue)

    def close(self) -> None:
        """Take no further messages, and end the thread."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _new_id(self) -> MessageId:
        return MessageId(0, next(self._offsets))

    def _redeliver(self, queue: bytes, record: Record, delay_seconds: float, *, delivered: bool) -> None:
        """Put a message into its queue, now or later; or make it a dead letter. `delivered`: this delivery counts."""
        if delay_seconds == 0:
            self._requeue(queue, record, delivered=delivered)
            return
        entry = (self._monotonic() + delay_seconds, next(self._numbers), queue, record, delivered)
        heapq.heappush(self._delayed, entry)
        if self._thread is None and not self._closed:
            # It wakes a `receive` that waits.
            self._thread = threading.Thread(target=self._look_often, name="thresher-queue-memory", daemon=True)
            self._thread.start()

    def _requeue(self, queue: bytes, record: Record, *, delivered: bool) -> None:
        if record.first_started_ms is not None:
            limit = self._limits.get(queue, self._limit).overridden(record.max_deliveries, record.ttl_ms)
            deliveries = record.delivery_count - (not delivered)
            age_ms = int(self._monotonic() * 1000) - record.first_started_ms
            if (passed := limit.passed(deliveries=deliveries, age_ms=age_ms)) is not None:
                self._queues[queue].dead.append(_dead_letter(queue, record, passed.reason))
                return
            if delivered:
                record = replace(record, delivery_count=record.delivery_count + 1)
        self._queues[queue].waiting.append(replace(record, message_id=self._new_id()))

    def _look_often(self) -> None:
        with self.changed:
            while self._delayed and not self._closed:
                self.changed.wait(_LOOK_SECONDS)
                self.look()
            self._thread = None

    def _hand_out(self, queue: bytes) -> None:
        """Start messages for the consumers that have room: those first that have the fewest waiting."""
        state = self._queues[queue]
        while state.waiting:
            ready = [share for share in state.shares if self._has_room(share)]
            if not ready:
                return
            share = min(ready, key=lambda each: (len(each.buffer), each.started))
            record = state.waiting.popleft()
            if record.first_started_ms is None:
                record.first_started_ms = int(self._monotonic() * 1000)
            share.entries[record.message_id] = Started(record)
            share.started += 1
            share.buffer.put([Message.of(record, share.queue, share.progress)])

    def _has_room(self, share: Share) -> bool:
        return (
            not share.buffer.closed and len(share.buffer) < self._ahead and len(share.entries) < self._max_in_progress
        )


def _dead_letter(queue: bytes, record: Record, reason: str) -> DeadLetter:
    return DeadLetter(
        queue=queue,
        payload=record.payload,
        headers=record.headers,
        id=record.message_id,
        origin_id=record.origin_id,
        delivery_count=record.delivery_count,
        enqueued_at_ms=record.enqueued_at_ms,
        # What markers can hold.
        reason=reason.encode(errors="replace").decode(),
    )
