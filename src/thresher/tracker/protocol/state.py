"""The messages of one marker partition that are in progress, by id, by offset and by deadline.

kafka-mq-go's three structures: `markersInProgress` is a dictionary, the other two are heaps. A heap's entry that the
message has outlived is passed over when it comes up, and swept once such entries are more than the messages: a marker
costs about the same however many messages there are. An End frees a message's content at once.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator

from thresher.queue.wire.marker import SYNTHETIC
from thresher.tracker.protocol.by_queue import MessagesByQueue
from thresher.tracker.protocol.started import Id, Origin, Started

# A heap is not swept for fewer outlived entries.
_LEAST_SWEPT = 1_000
# Of the time-out, the part that is waited after nobody could write a marker; and the most of it.
_GRACE_PART, _MOST_GRACE_MS = 2, 30_000

_TAKEN = -1
# Later than any deadline.
_NEVER_MS = 2**62


class Messages:
    """The messages in progress of one partition. For one thread."""

    def __init__(self) -> None:
        self._by_id: dict[Id, Started] = {}
        # Messages whose id another one has now.
        self._displaced: dict[Id, list[Started]] = {}
        self._by_offset: list[tuple[int, int, Started]] = []
        self._by_deadline: list[tuple[int, int, Started]] = []
        self._live = 0
        self._number = 0
        self.by_queue = MessagesByQueue()
        # How many of them were sent with a delay, and wait.
        self.delayed = 0

    def __len__(self) -> int:
        return self._live

    def get(self, id_: Id) -> Started | None:
        """Return the message that has this id now."""
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
        patience_ms: int,
    ) -> Started:
        """Add a message that is to be redelivered after so long, and return it."""
        message = Started(id_, origin, queue, content, offset=offset, now_ms=now_ms)
        message.deadline_ms = message.queued_ms = now_ms + after_ms
        message.patience_ms = patience_ms
        self._by_id[id_] = message
        self._live += 1
        self.delayed += id_[0] == SYNTHETIC
        self.by_queue.add(message)
        self._number += 1
        heapq.heappush(self._by_offset, (offset, self._number, message))
        heapq.heappush(self._by_deadline, (message.deadline_ms, self._number, message))
        return message

    def displace(self, message: Started, now_ms: int) -> None:
        """Let another message have this one's id. It is redelivered at once."""
        del self._by_id[message.id]
        self._displaced.setdefault(message.id, []).append(message)
        message.patience_ms = 0
        self.set_deadline(message, now_ms)

    def named(self, id_: Id, origin: Origin | None) -> Started | None:
        """Return the message of this id and origin, displaced or not.

        Without an origin it is that which has the id now; but a displaced one first whose Start named no origin either.
        """
        message, displaced = self._by_id.get(id_), self._displaced.get(id_, ())
        if origin is None:
            return next((each for each in displaced if not each.enqueued_ms), message)
        found = next((each for each in displaced if each.origin == origin), None)
        return message if found is None and message is not None and message.origin == origin else found

    def remove(self, message: Started) -> None:
        """Forget a message. Harmless when repeated."""
        if message.content is None:
            return
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
        # A later one is found when the earlier comes up.
        if deadline_ms < message.queued_ms:
            self._queue(message, deadline_ms)

    def set_offset(self, message: Started, offset: int, now_ms: int) -> None:
        """Take in that a copy of the message's Start was read: markers need be read from another offset on."""
        message.written_ms = now_ms
        if offset != message.offset:
            message.offset = offset
            self._number += 1
            heapq.heappush(self._by_offset, (offset, self._number, message))

    def first_offset(self, *, without: frozenset[Started] = frozenset()) -> int | None:
        """Return the smallest offset that is needed; None without messages."""
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
        """Return up to so many messages with the smallest offsets, as far as they are old."""
        taken: list[tuple[int, int, Started]] = []
        while len(taken) < most and self.first_offset() is not None and is_old(self._by_offset[0][2]):
            taken.append(heapq.heappop(self._by_offset))
        for each in taken:
            heapq.heappush(self._by_offset, each)
        return [message for _, _, message in taken]

    def next_deadline_ms(self, resumed_ms: int | None) -> int | None:
        """Return when the next message is due; `resumed_ms` is when markers could be written again, None: not yet."""
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
        """Yield the messages that are due by then, earliest first. Each is queued again by `put_back`."""
        while (due := self.next_deadline_ms(resumed_ms)) is not None and due <= until_ms:
            _, _, message = heapq.heappop(self._by_deadline)
            # It may be queued twice at this time.
            message.queued_ms = _TAKEN
            yield message

    def count_due(self, until_ms: int, most: int = 10_000) -> Counter[bytes]:
        """Return how many messages of each queue have a deadline that has passed by then, up to about so many."""
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
            # Of a message that was taken, no entry is left to keep.
            self._by_deadline = [
                each for each in self._by_deadline if each[2].content is not None and each[2].queued_ms == each[0]
            ]
            heapq.heapify(self._by_deadline)


def _is_current(offset: int, _: int, message: Started) -> bool:
    return message.content is not None and message.offset == offset


def _with_grace(message: Started, resumed_ms: int | None) -> int:
    if not message.patience_ms:
        return 0
    if resumed_ms is None:
        return _NEVER_MS
    return resumed_ms + min(message.patience_ms // _GRACE_PART, _MOST_GRACE_MS)
