"""Queues in the memory of one process, for the tests of applications: no broker, no topics, no tracker.

`MemoryQueueService` makes the same queues, producers and consumers as `QueueService`, and refuses the same input. It
plays the broker and the tracker:

1. Each message goes to one consumer of its queue. A consumer starts a few messages ahead of its application, and never
   has more than `max-in-progress` unsettled.
2. A nacked message comes back at the end of its queue when its delay has passed, with a delivery count of one more.
3. A consumer that is closed gives back what it has not settled, at once. Messages that its application has not received
   keep their delivery count.
4. Each delivery has an id of its own, and the origin id stays: it is what `send` returned.
5. A rejected message is one of its queue's `dead_letters`.

The consumers of this process do not die, so no message is redelivered by a time-out: `extend` does nothing.
"""

import contextlib
import heapq
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.consumer import QueueConsumer
from thresher.queue.message import Ack, Headers, Message, MessageId, Nack, Reject, Settlement
from thresher.queue.metrics import Figures
from thresher.queue.problem import AlreadySettled, QueueClosed
from thresher.queue.producer import QueueProducer
from thresher.queue.queue import Queue, queue_id
from thresher.queue.wire.record import Record

# Required keys, for a service that has no servers.
_NOWHERE = {"bootstrap-servers": "memory:9092", "message-topic": "messages", "marker-topic": "markers"}
# How many messages a consumer starts ahead of its application: as many as one on Kafka does at first.
_AHEAD = 8
# How often the thread looks at the clock while messages are delayed: a test's clock may be set forward at any time.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was rejected. `id` and `delivery_count` are those of its last delivery."""

    queue: bytes
    payload: bytes
    headers: Headers
    id: MessageId
    origin_id: MessageId
    delivery_count: int
    enqueued_at_ms: int
    reason: str


class MemoryQueueService:
    """The queues of one test. Safe from any thread; a context manager."""

    def __init__(
        self,
        config: QueueConfig | Mapping[str, Any] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`config` may be that of the application; servers and topics may be left out. Raises `ConfigurationInvalid`.

        Delays count on `monotonic`. Each `receive` looks at it, so that a test may set a clock of its own forward.
        """
        if not isinstance(config, QueueConfig):
            config = {**_NOWHERE, **{str(name).replace("_", "-"): value for name, value in (config or {}).items()}}
        self.config = configured(config)
        self._figures = Figures()
        self._lock = threading.Lock()
        self._closed = False
        self._consumers: list[QueueConsumer] = []
        self._tracker = _Tracker(self.config, monotonic, wall_clock)

    def queue(self, given: str | bytes) -> Queue:
        """Return a queue by its id, text or bytes. It needs not be made, and costs nothing until it is used."""
        return Queue(queue_id(given), self)

    get_or_create_queue = queue

    def dead_letters(self, queue: str | bytes) -> tuple[DeadLetter, ...]:
        """Return the messages of a queue that were rejected, the earliest first."""
        return self._tracker.dead_letters(queue_id(queue))

    def make_producer(self, queue: bytes) -> QueueProducer:
        """Return a producer for a queue."""
        with self._lock:
            self._require_open()
        sending: Any = _Sending(self._tracker)
        return QueueProducer(
            queue,
            self.config.message_topic,
            sending,
            self._figures,
            most_bytes=self.config.max_message_bytes,
            seconds=self.config.send_timeout / 1000,
        )

    def make_consumer(self, queue: bytes) -> QueueConsumer:
        """Return a consumer of a queue."""
        # It plays every part that Kafka's markers and group have.
        member: Any = _Member(queue, self._tracker)
        with self._lock:
            self._require_open()
            consumer = QueueConsumer(member.buffer, member, member, member, member, forget=self._forget)
            self._consumers.append(consumer)
        return consumer

    def close(self) -> None:
        """Close every consumer, and refuse further messages. Dead letters can still be read."""
        with self._lock:
            self._closed = True
            consumers = list(self._consumers)
        for consumer in consumers:
            consumer.close()
        self._tracker.close()

    def __enter__(self) -> "MemoryQueueService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise QueueClosed("the service was closed")

    def _forget(self, consumer: QueueConsumer) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._consumers.remove(consumer)


class _Buffer(ReceiveBuffer):
    """A receive buffer that sees to what is due before it waits."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def take(
        self, most: int, seconds: float | None, taken: Callable[[list[Message]], list[Message]] = lambda found: found
    ) -> list[Message]:
        self._look()
        # Without the buffer's lock: whoever hands out has the tracker's, and then takes this one.
        return taken(super().take(most, seconds))


@dataclass(slots=True)
class _Started:
    record: Record
    received: bool = False


class _Member:
    """One consumer's place in its queue, and the messages that it has in progress."""

    def __init__(self, queue: bytes, tracker: "_Tracker") -> None:
        self.queue, self._tracker = queue, tracker
        self.buffer = _Buffer(tracker.look)
        # The rest is the tracker's, and behind its lock.
        self.entries: dict[MessageId, _Started] = {}
        self.started = 0
        self.left = False

    def start(self) -> None:
        self._tracker.join(self)

    def stop(self, seconds: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        self._tracker.leave(self)
        return True

    def received(self, messages: list[Message]) -> list[Message]:
        self._tracker.received(self, messages)
        return messages

    def settle(self, message: Message, settlement: Settlement, *, sync: bool) -> None:  # noqa: ARG002 - it is done
        self._tracker.settle(self, message, settlement)

    def extend(self, message: Message, seconds: float) -> None:  # noqa: ARG002 - nothing is redelivered by a time-out
        self._tracker.require(self, message)

    def give_back(self) -> None:
        self._tracker.give_back(self)

    def flush(self, seconds: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True

    def add(self, kept: object) -> None:
        """Keep nothing alive: there is no time-out."""

    def remove(self, kept: object) -> None:
        """Keep nothing alive: there is no time-out."""

    def __len__(self) -> int:
        return len(self.entries)


class _Confirmed(NamedTuple):
    """A delivery report, as the client gives it."""

    message_id: MessageId

    def partition(self) -> int:
        return self.message_id.partition

    def offset(self) -> int:
        return self.message_id.offset


class _Sending:
    """Takes the place of the client that sends messages: each is confirmed at once, by the thread that sends it."""

    def __init__(self, tracker: "_Tracker") -> None:
        self._tracker = tracker

    def produce(
        self,
        topic: str,  # noqa: ARG002 - there is one
        value: bytes,
        key: bytes,
        report: Callable[[None, _Confirmed], None],
        *,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        report(None, _Confirmed(self._tracker.add(key, value, tuple(headers or ()))))


@dataclass(slots=True)
class _QueueState:
    waiting: deque[Record] = field(default_factory=deque)
    members: list[_Member] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)


class _Tracker:
    """Every message of a service, and who has it. Safe from any thread: one lock holds all."""

    def __init__(self, config: QueueConfig, monotonic: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._ahead = min(_AHEAD, config.consumer_receive_buffer_capacity)
        self._max_in_progress = config.max_in_progress
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._changed = threading.Condition()
        self._queues: defaultdict[bytes, _QueueState] = defaultdict(_QueueState)
        self._offsets = itertools.count()
        # Messages that were nacked with a delay, by the time that they are due; numbers break ties.
        self._delayed: list[tuple[float, int, bytes, Record]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, queue: bytes, payload: bytes, headers: Headers) -> MessageId:
        """Take in a new message. Raises `QueueClosed`."""
        with self._changed:
            if self._closed:
                raise QueueClosed("the service was closed")
            message_id = self._new_id()
            record = Record(
                message_id=message_id,
                payload=payload,
                headers=headers,
                delivery_count=1,
                origin_id=message_id,
                enqueued_at_ms=int(self._wall_clock() * 1000),
            )
            self._queues[queue].waiting.append(record)
            self._hand_out(queue)
        return message_id

    def dead_letters(self, queue: bytes) -> tuple[DeadLetter, ...]:
        """Return a queue's dead letters."""
        with self._changed:
            return tuple(self._queues[queue].dead) if queue in self._queues else ()

    def join(self, member: _Member) -> None:
        """Have a member get messages."""
        with self._changed:
            self._queues[member.queue].members.append(member)
            self._hand_out(member.queue)

    def leave(self, member: _Member) -> None:
        """Let a member get no further messages."""
        with self._changed:
            members = self._queues[member.queue].members
            if member in members:
                members.remove(member)

    def received(self, member: _Member, messages: Iterable[Message]) -> None:
        """Take in that the member's application has these messages now."""
        with self._changed:
            for message in messages:
                if (entry := member.entries.get(message.id)) is not None:
                    entry.received = True
            self._hand_out(member.queue)

    def require(self, member: _Member, message: Message) -> Record:
        """Return the record of a message in progress. Raises `AlreadySettled` or `QueueClosed`."""
        with self._changed:
            if (entry := member.entries.get(message.id)) is not None:
                return entry.record
            if member.left:
                raise QueueClosed(f"message {message.id} was given back: its consumer is closed")
            raise AlreadySettled(f"message {message.id} was acked, nacked or rejected before")

    def settle(self, member: _Member, message: Message, settlement: Settlement) -> None:
        """End a message's progress."""
        with self._changed:
            record = self.require(member, message)
            match settlement:
                case Ack():
                    pass
                case Nack(delay):
                    self._redeliver(member.queue, _counted(record), delay)
                case Reject(reason):
                    self._queues[member.queue].dead.append(_dead_letter(member.queue, record, reason))
            del member.entries[message.id]
            self._hand_out(member.queue)

    def give_back(self, member: _Member) -> None:
        """End all that a member has left: each is redelivered at once."""
        with self._changed:
            member.left = True
            for entry in member.entries.values():
                self._redeliver(member.queue, _counted(entry.record) if entry.received else entry.record, 0.0)
            member.entries.clear()
            self._hand_out(member.queue)

    def look(self) -> None:
        """Redeliver what is due by now."""
        with self._changed:
            now = self._monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                _, _, queue, record = heapq.heappop(self._delayed)
                self._redeliver(queue, record, 0.0)
                self._hand_out(queue)

    def close(self) -> None:
        """Take no further messages, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _new_id(self) -> MessageId:
        return MessageId(0, next(self._offsets))

    def _redeliver(self, queue: bytes, record: Record, delay_seconds: float) -> None:
        if delay_seconds == 0:
            self._queues[queue].waiting.append(replace(record, message_id=self._new_id()))
            return
        heapq.heappush(self._delayed, (self._monotonic() + delay_seconds, next(self._numbers), queue, record))
        if self._thread is None and not self._closed:
            # It wakes a `receive` that waits.
            self._thread = threading.Thread(target=self._look_often, name="thresher-queue-memory", daemon=True)
            self._thread.start()

    def _look_often(self) -> None:
        with self._changed:
            while self._delayed and not self._closed:
                self._changed.wait(_LOOK_SECONDS)
                self.look()
            self._thread = None

    def _hand_out(self, queue: bytes) -> None:
        """Start messages for the members that have room: those first that have the fewest waiting."""
        state = self._queues[queue]
        while state.waiting:
            ready = [member for member in state.members if self._has_room(member)]
            if not ready:
                return
            member = min(ready, key=lambda each: (len(each.buffer), each.started))
            record = state.waiting.popleft()
            member.entries[record.message_id] = _Started(record)
            member.started += 1
            member.buffer.put([_message(queue, record, member)])

    def _has_room(self, member: _Member) -> bool:
        return (
            not member.buffer.closed
            and len(member.buffer) < self._ahead
            and len(member.entries) < self._max_in_progress
        )


def _counted(record: Record) -> Record:
    return replace(record, delivery_count=record.delivery_count + 1)


def _message(queue: bytes, record: Record, member: _Member) -> Message:
    return Message(
        queue=queue,
        payload=record.payload,
        headers=record.headers,
        message_id=record.message_id,
        origin_id=record.origin_id,
        delivery_count=record.delivery_count,
        enqueued_at_ms=record.enqueued_at_ms,
        progress=member,
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
