"""The messages in progress of one marker partition, by id, by offset and by deadline.

These are kafka-mq-go's three structures: `markersInProgress` is a dictionary, the other two are heaps. An outdated heap
entry is skipped when it comes up. Once outdated entries outnumber the messages, they are all removed. So the cost of a
marker hardly depends on the number of messages. An End frees a message's content at once.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator

from thresher.queue.wire.marker import SYNTHETIC
from thresher.tracker.protocol.by_queue import MessagesByQueue
from thresher.tracker.protocol.contents import Contents
from thresher.tracker.protocol.started import Id, Origin, Started

# A heap with fewer outdated entries than this is not swept.
_LEAST_SWEPT = 1_000
# The grace period after markers could not be written: the time-out divided by this number, and its maximum.
_GRACE_PART, _MOST_GRACE_MS = 2, 30_000

_TAKEN = -1
# Later than any deadline.
_NEVER_MS = 2**62


class Messages:
    """The messages in progress of one partition. For one thread."""

    def __init__(self, contents: Contents | None = None) -> None:
        """All partitions of a shard may share `contents`."""
        self.contents = contents or Contents()
        self._by_id: dict[Id, Started] = {}
        # Messages whose id another message has now.
        self._displaced: dict[Id, list[Started]] = {}
        self._by_offset: list[tuple[int, int, Started]] = []
        self._by_deadline: list[tuple[int, int, Started]] = []
        self._live = 0
        self._number = 0
        self.by_queue = MessagesByQueue()
        # The number of messages that were sent with a delay that has not passed.
        self.delayed = 0

    def __len__(self) -> int:
        return self._live

    def get(self, id_: Id) -> Started | None:
        """Return the message that currently has this id."""
        return self._by_id.get(id_)

    def add(
        self,
        id_: Id,
        origin: Origin,
        queue: bytes,
        content: bytes,
        *,
        offset: int,
        now_ms: int,
        after_ms: int,
        timeout_ms: int,
    ) -> Started:
        """Add a message that is due after `after_ms`, and return it."""
        message = Started(id_, origin, queue, self.contents.keep(content), offset=offset, now_ms=now_ms)
        message.deadline_ms = message.queued_ms = now_ms + after_ms
        message.timeout_ms = timeout_ms
        self._by_id[id_] = message
        self._live += 1
        self.delayed += id_[0] == SYNTHETIC
        self.by_queue.add(message)
        self._number += 1
        heapq.heappush(self._by_offset, (offset, self._number, message))
        heapq.heappush(self._by_deadline, (message.deadline_ms, self._number, message))
        return message

    def displace(self, message: Started, now_ms: int) -> None:
        """Free this message's id for another message. This message is due at once."""
        del self._by_id[message.id]
        self._displaced.setdefault(message.id, []).append(message)
        message.timeout_ms = 0
        self.set_deadline(message, now_ms)

    def content_of(self, message: Started) -> bytes:
        """Return a message's Start as it was read; nothing if the message is no longer in progress."""
        return self.contents.read(message.content)

    def named(self, id_: Id, origin: Origin | None) -> Started | None:
        """Return the message with this id and origin, displaced or not.

        Without an origin, return a displaced message whose Start had no origin either, or else the message that
        currently has the id.
        """
        message, displaced = self._by_id.get(id_), self._displaced.get(id_, ())
        if origin is None:
            return next((each for each in displaced if not each.enqueued_ms), message)
        found = next((each for each in displaced if each.origin == origin), None)
        return message if found is None and message is not None and message.origin == origin else found

    def remove(self, message: Started) -> None:
        """Remove a message. A repeated call has no effect."""
        if message.content is None:
            return
        self.contents.forget(message.content)
        message.content = None
        self._live -= 1
        self.delayed -= message.id[0] == SYNTHETIC
        self.by_queue.remove(message)
        if self._by_id.get(message.id) is message:
            del self._by_id[message.id]
        else:
            others = [each for each in self._displaced.pop(message.id) if each is not message]
            if others:
                self._displaced[message.id] = others
        self._sweep()

    def set_deadline(self, message: Started, deadline_ms: int) -> None:
        """Change a message's deadline."""
        message.deadline_ms = deadline_ms
        # A later deadline needs no entry now: it is added when the earlier entry comes up.
        if deadline_ms < message.queued_ms:
            self._queue(message, deadline_ms)

    def set_offset(self, message: Started, offset: int, now_ms: int) -> None:
        """Register that a copy of the message's Start was read: its markers are needed from another offset on."""
        message.written_ms = now_ms
        if offset != message.offset:
            message.offset = offset
            self._number += 1
            heapq.heappush(self._by_offset, (offset, self._number, message))

    def first_offset(self, *, without: frozenset[Started] = frozenset()) -> int | None:
        """Return the smallest offset that a message not in `without` needs; None if there is none."""
        passed = []
        while self._by_offset:
            message = self._by_offset[0][2]
            if not _is_current(*self._by_offset[0]):
                heapq.heappop(self._by_offset)
            elif message in without:
                passed.append(heapq.heappop(self._by_offset))
            else:
                break
        found = self._by_offset[0][0] if self._by_offset else None
        for each in passed:
            heapq.heappush(self._by_offset, each)
        return found

    def oldest(self, most: int, is_old: Callable[[Started], bool]) -> list[Started]:
        """Return up to `most` messages with the smallest offsets, stopping at the first that `is_old` rejects."""
        taken: list[tuple[int, int, Started]] = []
        while len(taken) < most and self.first_offset() is not None and is_old(self._by_offset[0][2]):
            taken.append(heapq.heappop(self._by_offset))
        for each in taken:
            heapq.heappush(self._by_offset, each)
        return [message for _, _, message in taken]

    def next_deadline_ms(self, resumed_ms: int | None) -> int | None:
        """Return when the next message is due.

        `resumed_ms` is when markers could be written again, None if they cannot yet: the grace period begins there.
        """
        while self._by_deadline:
            queued, _, message = self._by_deadline[0]
            if message.content is None or queued != message.queued_ms:
                heapq.heappop(self._by_deadline)
                continue
            due = max(message.deadline_ms, _with_grace(message, resumed_ms))
            if due == queued:
                return due
            heapq.heappop(self._by_deadline)
            self._queue(message, due)
        return None

    def take_due(self, until_ms: int, resumed_ms: int | None) -> Iterator[Started]:
        """Yield the messages due by `until_ms`, earliest first. `put_back` queues a message again."""
        while (due := self.next_deadline_ms(resumed_ms)) is not None and due <= until_ms:
            _, _, message = heapq.heappop(self._by_deadline)
            # Another entry of the message may have the same time.
            message.queued_ms = _TAKEN
            yield message

    def count_due(self, until_ms: int, most: int = 10_000) -> Counter[bytes]:
        """Count the messages whose deadline has passed by `until_ms`, by queue, up to about `most`."""
        heap, found, looked, left = self._by_deadline, Counter[bytes](), [0], most
        while looked and left:
            place = looked.pop()
            if place < len(heap) and heap[place][0] <= until_ms:
                queued, _, message = heap[place]
                if message.content is not None and message.queued_ms == queued:
                    found[message.queue] += 1
                    left -= 1
                looked += (2 * place + 1, 2 * place + 2)
        return found

    def put_back(self, message: Started) -> None:
        """Queue a message again that was taken and is still in progress."""
        if message.content is not None:
            self._queue(message, message.deadline_ms)

    def _queue(self, message: Started, due_ms: int) -> None:
        message.queued_ms = due_ms
        self._number += 1
        heapq.heappush(self._by_deadline, (due_ms, self._number, message))

    def _sweep(self) -> None:
        most = 2 * self._live + _LEAST_SWEPT
        if len(self._by_offset) > most:
            self._by_offset = [each for each in self._by_offset if _is_current(*each)]
            heapq.heapify(self._by_offset)
        if len(self._by_deadline) > most:
            # A message that was taken has no valid entry.
            self._by_deadline = [
                each for each in self._by_deadline if each[2].content is not None and each[2].queued_ms == each[0]
            ]
            heapq.heapify(self._by_deadline)


def _is_current(offset: int, _: int, message: Started) -> bool:
    return message.content is not None and message.offset == offset


def _with_grace(message: Started, resumed_ms: int | None) -> int:
    if not message.timeout_ms:
        return 0
    if resumed_ms is None:
        return _NEVER_MS
    return resumed_ms + min(message.timeout_ms // _GRACE_PART, _MOST_GRACE_MS)
