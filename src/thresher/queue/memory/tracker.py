"""The messages of queues in memory, and which consumer has each: replaces the broker and the tracker."""

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

# How many messages a consumer starts ahead of its application: as many as a consumer on Kafka does at first.
_AHEAD = 8
# How often the thread reads the clock while messages are delayed: a test may move its clock forward at any time.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was rejected, or has reached its limits.

    `id` and `delivery_count` are those of its last delivery.
    """

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
    """A message in progress, and when the application received it."""

    record: Record
    received: float | None = None


@dataclass(slots=True, eq=False)
class Share:
    """One consumer's messages of its queue. Owned by the tracker and protected by its lock."""

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
    """Every message of a service, and which consumer has it. Thread-safe: one lock protects everything."""

    def __init__(self, config: QueueConfig, monotonic: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._ahead = min(_AHEAD, config.consumer_receive_buffer_capacity)
        self._max_in_progress = config.max_in_progress
        self._limit, self._limits = limit_of_all(config), limits_by_queue(config)
        self._monotonic, self._wall_clock = monotonic, wall_clock
        # Consumers also wait on this condition for messages: see `MemoryBuffer`.
        self.changed = threading.Condition()
        self._queues: defaultdict[bytes, _QueueState] = defaultdict(_QueueState)
        self._offsets = itertools.count()
        # Delayed messages: when each is due, a number that breaks ties, its queue and record, and whether its last
        # delivery counts.
        self._delayed: list[tuple[float, int, bytes, Record, bool]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, queue: bytes, payload: bytes, headers: Headers) -> MessageId:
        """Add a new message. Raises `QueueClosed`."""
        with self.changed:
            if self._closed:
                raise QueueClosed("the service was closed")
            message_id = self._new_id()
            record = record_of(message_id, payload, headers, int(self._wall_clock() * 1000))
            self._queues[queue].waiting.append(record)
            self._hand_out(queue)
        return message_id

    def delay(self, start: Marker) -> None:
        """Add a message that was sent with a delay. Raises `QueueClosed`."""
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
        """Add a consumer, which gets messages from now on."""
        with self.changed:
            self._queues[share.queue].shares.append(share)
            self._hand_out(share.queue)

    def leave(self, share: Share) -> None:
        """Give a consumer no more messages."""
        with self.changed:
            shares = self._queues[share.queue].shares
            if share in shares:
                shares.remove(share)

    def received(self, share: Share, messages: Iterable[Message]) -> None:
        """Register that the consumer's application has received these messages."""
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
        """Settle a message; return how many seconds after its receipt, or None if it was not received."""
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
        """Give back all messages that a consumer has left, for redelivery at once. Return their number."""
        with self.changed:
            share.left = True
            left, share.entries = share.entries, {}
            for entry in left.values():
                delivered = entry.received is not None
                self._redeliver(share.queue, entry.record, 0.0, delivered=delivered)
            self._hand_out(share.queue)
        return len(left)

    def look(self) -> None:
        """Redeliver the messages that are due."""
        with self.changed:
            now = self._monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                _, _, queue, record, delivered = heapq.heappop(self._delayed)
                self._redeliver(queue, record, 0.0, delivered=delivered)
                self._hand_out(queue)

    def close(self) -> None:
        """Accept no more messages, and end the thread."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _new_id(self) -> MessageId:
        return MessageId(0, next(self._offsets))

    def _redeliver(self, queue: bytes, record: Record, delay_seconds: float, *, delivered: bool) -> None:
        """Return a message to its queue, now or later, or make it a dead letter.

        `delivered`: whether this delivery counts.
        """
        if delay_seconds == 0:
            self._requeue(queue, record, delivered=delivered)
            return
        entry = (self._monotonic() + delay_seconds, next(self._numbers), queue, record, delivered)
        heapq.heappush(self._delayed, entry)
        if self._thread is None and not self._closed:
            # The thread wakes a waiting `receive`.
            self._thread = threading.Thread(target=self._redeliver_due, name="thresher-queue-memory", daemon=True)
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

    def _redeliver_due(self) -> None:
        with self.changed:
            while self._delayed and not self._closed:
                self.changed.wait(_LOOK_SECONDS)
                self.look()
            self._thread = None

    def _hand_out(self, queue: bytes) -> None:
        """Start messages for the consumers that have room, the one with the fewest waiting messages first."""
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
        # Restricted to text that a marker can hold.
        reason=reason.encode(errors="replace").decode(),
    )
