"""Decides what the markers of one partition mean, and which transaction to write next. Pure: no server, no clock.

1. `take` processes the markers in order, and `answered` the broker's high watermark. Both update the clock and the
   messages.
2. `next` returns the next transaction, or None. The first transaction writes a mark: an End without a message. Until it
   is read back, markers of earlier trackers may come, and nothing is decided.
3. A message whose deadline has passed waits until a mark that was written after the deadline is read back. Then every
   marker before that mark was read too. The high watermark alone does not prove that: an isolated broker may return an
   old one.
4. A redelivery is one transaction: the message's record, an End of the old delivery, and the offset. So is a dead
   letter.
5. `committed` registers that a transaction was committed; `refused`, that a record was refused and nothing was
   committed: then smaller transactions find the message. A refused message, or one whose Start cannot be copied,
   becomes a dead letter; a refused letter is written in smaller and smaller parts, at last without its content. If
   neither is certain, this object is discarded, and another one reads from the committed offset.

The committed offset is the smallest that is still needed. If a message holds it back for long, the message's Start is
rewritten. See `recent` for the markers in between.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from thresher.queue.limits import Limit
from thresher.queue.wire.marker import SYNTHETIC, MarkerMalformed, MarkerType, parse
from thresher.tracker.protocol.clock import MarkerClock
from thresher.tracker.protocol.commit_pace import CommitPace
from thresher.tracker.protocol.contents import Contents, size_of
from thresher.tracker.protocol.copies import Copies, copy_of
from thresher.tracker.protocol.figures import Figures
from thresher.tracker.protocol.known_end import KnownEnd
from thresher.tracker.protocol.limits import fate_of
from thresher.tracker.protocol.marks import Marks
from thresher.tracker.protocol.recent import WINDOW, is_last, named_origin, origin_of
from thresher.tracker.protocol.refusals import Refusals
from thresher.tracker.protocol.started import Id, Origin, Started
from thresher.tracker.protocol.state import Messages
from thresher.tracker.protocol.transaction import Fate, RefusedKind, Transaction

# The limits of one transaction: messages, and their approximate bytes.
MOST_MESSAGES, MOST_BYTES = 1_000, 4_000_000
# A Start is rewritten when it is this many offsets behind the position, and this many times the messages in progress.
MOST_BEHIND, _BEHIND_FACTOR = 1_000_000, 4
# A queue's id, and a marker that holds no message, are no larger; a rejection's reason has no more characters.
_MOST_QUEUE_BYTES, _MOST_MARKER_BYTES, _MOST_REASON = 1_000, 5_000, 1_000
# Longer than any retention.
_LONGEST_MS = 10 * 365 * 86_400_000

START, END = int(MarkerType.START), int(MarkerType.END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of tracking."""

    limit_of: Callable[[bytes], Limit] = lambda _queue: Limit()
    markers_per_commit: int = 1_000
    # Starts older than this are rewritten.
    rewrite_after_ms: int = _LONGEST_MS
    most_behind: int = MOST_BEHIND
    window: int = WINDOW


class Tracking:
    """The state of one marker partition, from an offset on. For one thread."""

    def __init__(
        self,
        partition: int,
        start: int,
        rules: Rules,
        *,
        committed: bool = True,
        clock: MarkerClock | None = None,
        contents: Contents | None = None,
        draw: Callable[[], int] = lambda: random.getrandbits(62),
    ) -> None:
        """Markers are read from `start` on.

        Without `committed`, that is the first record rather than a committed offset. All partitions of a shard
        may share `contents`.
        """
        self.partition, self.position = partition, start
        # The shard may replace the rules at any time.
        self.rules = rules
        self.clock = clock or MarkerClock()
        self.messages = Messages(contents)
        self.figures = Figures()
        self._marks, self._copies = Marks(draw), Copies(start, rules.window, committed=committed)
        self._pace = CommitPace(start, rules.markers_per_commit)
        # Ends that this tracker has written and not read back.
        self._own_ends: set[tuple[Id, Origin]] = set()
        self._refusals = Refusals(MOST_MESSAGES)
        self._known_end = KnownEnd(self.clock, start)

    @property
    def decides(self) -> bool:
        """Whether the first mark was read back: everything written before by trackers and consumers was read."""
        return self._marks.confirmed_ms is not None

    @property
    def lag(self) -> int:
        """The number of offsets between the position and the broker's last high watermark."""
        return max(0, self._known_end.high - self.position)

    @property
    def oldest_seconds(self) -> float:
        """The time since the oldest message in progress was started; 0 if there is none."""
        oldest = self.messages.oldest(1, lambda _: True)
        return max(0, self.clock.now_ms - oldest[0].started_ms) / 1000 if oldest else 0.0

    def take(self, offset: int, timestamp_ms: int, key: bytes, content: bytes, at: float) -> None:
        """Process the next marker. A record that is not a marker is counted and skipped."""
        now = self.clock.marker(timestamp_ms, at)
        self.position = offset + 1
        self._pace.taken()
        try:
            marker = parse(content)
        except MarkerMalformed as error:
            self.figures.set_aside(offset, str(error))
            return
        message_id = marker.message_id
        id_ = (message_id.partition, message_id.offset)
        if id_[1] < 0 or id_[0] < SYNTHETIC:
            self.figures.set_aside(offset, f"no message has the id {id_[0]}-{id_[1]}")
        elif marker.type == START:
            if 0 < len(marker.key or key) <= _MOST_QUEUE_BYTES:
                self._start(id_, marker, key, content, offset, now)
            else:
                self.figures.set_aside(offset, f"a Start names a queue of {len(marker.key or key)} bytes")
        elif len(content) > _MOST_MARKER_BYTES:
            # Markers of unknown messages are remembered while the state is rebuilt.
            self.figures.set_aside(offset, f"a marker of {len(content)} bytes without a message")
        elif marker.type == END:
            self._end(id_, marker, offset)
        else:
            self._keep_alive(id_, marker, offset, now)

    def reach(self, offset: int) -> None:
        """Register that every marker before this offset was processed."""
        self.position = max(self.position, offset)
        self._known_end.reached(self.position)

    def answered(self, asked_at: float, high: int) -> None:
        """Process the high watermark from a request made at `asked_at`."""
        self._known_end.answered(asked_at, high)
        self._known_end.reached(self.position)

    def next(self, at: float) -> Transaction | None:
        """Return the next transaction, or None if there is nothing to do."""
        if not self.lag:
            self._marks.give_up(at)
            self._copies.give_up(at)
        now, confirmed = self.clock.now_ms, self._marks.confirmed_ms
        if not self._marks.on_its_way:
            if confirmed is None or self.clock.resumed_ms is None:
                return Transaction(offset=self._offset(), mark=self._marks.new(now, fresh=True))
            # A copy that is not read back yet could bring a message back that is redelivered meanwhile.
            due = None if self._copies.unread else self.messages.next_deadline_ms(self.clock.resumed_ms)
            if due is not None and due <= confirmed:
                return self._redelivering(confirmed, now)
            if due is not None and due <= now:
                return Transaction(offset=self._offset(), mark=self._marks.new(now))
        if self.decides and (copies := self._copying(now)) is not None:
            return copies
        if not self._pace.is_due(at):
            return None
        offset = self._offset()
        return Transaction(offset=offset) if self._pace.is_new(offset, at) else None

    def committed(self, transaction: Transaction, at: float) -> None:
        """Register that a transaction was committed."""
        self._pace.committed(transaction.offset, at)
        self._marks.written(transaction.mark, at)
        if transaction.copies:
            self._copies.written(transaction.messages, transaction.copies[0].read_to or 0, at)
            self.figures.counts["rewritten"] += len(transaction.copies)
        for message, fate in zip(transaction.messages, transaction.fates, strict=False):
            origin = fate.marker.origin_id or fate.marker.message_id
            self._own_ends.add((message.id, (*origin, fate.marker.enqueued_at_ms or 0)))
            self.messages.remove(message)
            self.figures.decided(message.queue, fate)
        self._refusals.committed(transaction)

    def refused(self, transaction: Transaction, why: str, kind: RefusedKind = RefusedKind.MESSAGE) -> None:
        """Register that the broker refused a record, so that nothing was committed.

        Raises `RecordRefused` if a dead letter is refused even without its content.
        """
        self._refusals.refused(transaction, why, kind, self.messages, self.clock.now_ms)
        self.undone(transaction)

    def undone(self, transaction: Transaction) -> None:
        """Register that a transaction was aborted."""
        if transaction.fates:
            for message in transaction.messages:
                self.messages.put_back(message)

    def _start(self, id_: Id, marker: Any, key: bytes, content: bytes, offset: int, now: int) -> None:
        known, origin = self.messages.get(id_), origin_of(marker)
        if origin[0] < SYNTHETIC or origin[1] < 0:
            self.figures.set_aside(offset, f"no message has the origin {origin[0]}-{origin[1]}")
            return
        if marker.HasField("read_to"):
            self._copy(id_, marker, known, key, content, offset, now)
            return
        if known is not None:
            if self._is_same(known, marker, key):
                if known.enqueued_ms and not marker.HasField("origin_id"):
                    # A Start of kafka-mq-go has less information, so the known content is kept, and its offset is still
                    # needed.
                    origin, content, offset = known.origin, self.messages.content_of(known) or content, known.offset
                self.messages.remove(known)
            else:
                # The message topic was recreated, so offsets repeat.
                self.figures.counts["displaced"] += 1
                self.messages.displace(known, now)
        after = min(marker.redeliver_after_ms, _LONGEST_MS)
        message = self.messages.add(
            id_,
            origin,
            marker.key or key,
            content,
            offset=offset,
            now_ms=now,
            after_ms=after,
            timeout_ms=0 if id_[0] == SYNTHETIC else after,
        )
        message.undelivered = marker.undelivered
        self.figures.counts["started"] += 1

    def _is_same(self, known: Started, marker: Any, key: bytes) -> bool:
        """Whether a Start belongs to the message that already has its id.

        kafka-mq-go's Starts have no origin: then queue and payload are compared.
        """
        if known.enqueued_ms and marker.HasField("origin_id"):
            return known.origin == origin_of(marker)
        before = parse(self.messages.content_of(known))
        return known.queue == (marker.key or key) and before.value == marker.value

    def _copy(
        self, id_: Id, marker: Any, known: Started | None, key: bytes, content: bytes, offset: int, now: int
    ) -> None:
        """Process a Start that a tracker has rewritten."""
        read_to, origin = marker.read_to, origin_of(marker)
        if not self._copies.counts(offset, read_to):
            self.figures.counts["void_copies"] += 1
            return
        if known is not None and known.origin == origin:
            self.messages.set_offset(known, read_to, now)
            return
        if known is not None or self.messages.named(id_, origin) is not None:
            # Another message has the id now. This one is being redelivered, and still needs its own Start.
            return
        later = self._copies.later(id_, origin, read_to)
        if later is not None and later.type == END:
            return
        message = self.messages.add(
            id_,
            origin,
            marker.key or key,
            content,
            offset=read_to,
            now_ms=now,
            after_ms=min(marker.redeliver_after_ms, _LONGEST_MS),
            timeout_ms=min(marker.timeout_ms, _LONGEST_MS),
        )
        message.undelivered = marker.undelivered
        message.started_ms = marker.first_started_ms or now
        if later is not None:
            self._put_off(message, later, now)

    def _end(self, id_: Id, marker: Any, offset: int) -> None:
        if self._marks.read_back(id_):
            self._copies.rebuilt()
            if self._marks.is_fresh(id_):
                self.clock.resume()
            return
        # Our own End belongs to a message that is already removed. Another message may have its id and, from
        # kafka-mq-go's markers, its origin.
        named = (id_, origin_of(marker))
        own = named in self._own_ends
        self._own_ends.discard(named)
        message = None if own else self.messages.named(id_, named_origin(marker))
        if message is not None:
            self.figures.counts["ended"] += 1
            self.messages.remove(message)
            self._copies.ended(message, offset, marker)
            return
        # Marks of earlier trackers are unknown here, and are not counted.
        if not own and id_[0] != SYNTHETIC:
            self.figures.counts["unknown_ends"] += 1
        self._copies.unknown(id_, offset, marker)

    def _keep_alive(self, id_: Id, marker: Any, offset: int, now: int) -> None:
        message = self.messages.named(id_, named_origin(marker))
        # A displaced message is redelivered, even if its consumer keeps it alive.
        if message is None or self.messages.get(id_) is not message:
            self.figures.counts["unknown_keep_alives"] += 1
            self._copies.unknown(id_, offset, marker)
        else:
            self._put_off(message, marker, now)

    def _put_off(self, message: Started, marker: Any, now: int) -> None:
        if message.reject_reason is not None:
            # The KeepAlive was in flight when the message was rejected.
            return
        after = min(marker.redeliver_after_ms, _LONGEST_MS)
        if is_last(marker):
            message.reject_reason = marker.reject_reason[:_MOST_REASON]
            after = 0
        message.undelivered = marker.undelivered
        message.timeout_ms = 0 if marker.released or message.reject_reason is not None else after
        self.messages.set_deadline(message, now + after)

    def _redelivering(self, until_ms: int, now: int) -> Transaction:
        messages: list[Started] = []
        fates: list[Fate] = []
        size = 0
        for message in self.messages.take_due(until_ms, self.clock.resumed_ms):
            messages.append(message)
            content, limit = self.messages.content_of(message), self.rules.limit_of(message.queue)
            fates.append(self._refusals.sized(message, fate_of(message, content, limit, now)))
            size += size_of(message.content)
            if len(messages) >= self._refusals.most or size > MOST_BYTES:
                break
        following = self.messages.next_deadline_ms(self.clock.resumed_ms)
        mark = None
        if following is not None and until_ms < following <= now:
            mark = self._marks.new(now)
        taken = tuple(messages)
        return Transaction(offset=self._offset(taken), fates=tuple(fates), messages=taken, mark=mark)

    def _copying(self, now: int) -> Transaction | None:
        """Return a transaction that rewrites the Starts that hold the committed offset back for long, or None."""
        if self._copies.unread:
            return None
        behind = max(self.rules.most_behind, _BEHIND_FACTOR * len(self.messages))
        before, written_before = self.position - behind, now - self.rules.rewrite_after_ms

        def is_old(message: Started) -> bool:
            return message.written_ms < written_before or message.offset < before

        messages = [
            message
            for message in self.messages.oldest(self._refusals.most_copies, is_old)
            # A due message is redelivered instead. A displaced message is not copied, because its copy would apply to
            # the other message with its id.
            if message.deadline_ms > now and self.messages.get(message.id) is message
        ]
        most = _fitting([size_of(message.content) for message in messages])
        if not most:
            return None
        messages = messages[:most]
        copies = tuple(copy_of(message, self.messages.content_of(message), self.position, now) for message in messages)
        return Transaction(offset=self._offset(), copies=copies, messages=tuple(messages))

    def _offset(self, ended: tuple[Started, ...] = ()) -> int:
        """Return the smallest offset that is needed once these messages have ended."""
        first = self.messages.first_offset(without=frozenset(ended))
        return self._copies.needed(self.position if first is None else min(first, self.position))


def _fitting(sizes: list[int]) -> int:
    """Return how many messages of these sizes go into one transaction: at least one, if there is any."""
    return next((place + 1 for place, size in enumerate(accumulate(sizes)) if size > MOST_BYTES), len(sizes))
