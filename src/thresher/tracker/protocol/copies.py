"""Starts that the tracker rewrites, so that older markers can be removed; and the copies written by earlier trackers.

A copy is a rewritten Start. It holds the message's state when its tracker had read the markers up to offset `read_to`.

1. The message needs the markers from `read_to` on. So the committed offset stays at or below `read_to`, also while the
   copy is not read back yet.
2. The message's markers between `read_to` and the copy are newer than the copy, although they are read before it. See
   `recent`.
3. A copy is void if more than `window` offsets lie between its `read_to` and itself: `recent` remembers no more. A copy
   is also void if its `read_to` is below the committed offset: a message in progress would have held that offset back.
"""

from collections.abc import Iterable
from typing import Any

from thresher.queue.wire.marker import SYNTHETIC, Marker, decode
from thresher.tracker.protocol.marks import LOST_SECONDS
from thresher.tracker.protocol.recent import RecentMarkers
from thresher.tracker.protocol.started import Id, Origin, Started


class Copies:
    """The copies of one partition. For one thread."""

    def __init__(self, start: int, window: int, *, committed: bool = True) -> None:
        """Begin at offset `start`. `committed`: whether `start` is a committed offset, with which rule 3 compares."""
        self._begun_at, self._window = start, window
        self._least_read_to = start if committed else 0
        # During the rebuild, copies by earlier trackers may come.
        self._recent: RecentMarkers | None = RecentMarkers(window)
        # Our own copies that were not read back: their number, the offset read before they were written, their
        # messages, and the Ends of these messages.
        self._unread, self._read_to, self._written_at = 0, start, 0.0
        self._messages: frozenset[tuple[Id, Origin]] = frozenset()
        self._late = RecentMarkers(window)

    @property
    def unread(self) -> bool:
        """Whether any copies were written and not read back yet."""
        return self._unread > 0

    def rebuilt(self) -> None:
        """Register that everything written by earlier trackers was read."""
        self._recent = None

    def written(self, messages: Iterable[Started], read_to: int, at: float) -> None:
        """Register that copies of these messages, with this `read_to`, are committed."""
        self._written_at = at
        # Ids, not objects, because a second Start replaces the object.
        self._messages = frozenset((message.id, message.origin) for message in messages)
        self._unread, self._read_to = len(self._messages), read_to

    def give_up(self, at: float) -> None:
        """Stop waiting for copies not read back in `LOST_SECONDS`, though all was read: the broker has lost them."""
        if self._unread and at - self._written_at > LOST_SECONDS:
            self._unread = 0

    def counts(self, offset: int, read_to: int) -> bool:
        """Process a copy that was read at this offset, and return whether it is valid."""
        if self._recent is None:
            # No other tracker can write a copy any more.
            self._unread = max(0, self._unread - 1)
        return self._least_read_to <= read_to <= offset <= read_to + self._window

    def unknown(self, id_: Id, offset: int, marker: Any) -> None:
        """Remember a marker of a message that is not in progress."""
        if self._recent is not None:
            self._recent.note(id_, offset, marker)

    def ended(self, message: Started, offset: int, marker: Any) -> None:
        """Remember the End of a message that was in progress."""
        if (message.id, message.origin) in self._messages:
            self._late.note(message.id, offset, marker)
        self.unknown(message.id, offset, marker)

    def later(self, id_: Id, origin: Origin, read_to: int) -> Any | None:
        """Return the message's last marker that is newer than its copy, although it was read before."""
        recent = None if self._recent is None else self._recent.after(id_, origin, read_to)
        return recent or self._late.after(id_, origin, read_to)

    def needed(self, offset: int) -> int:
        """Return the offset to commit: this one, or a lower one that copies need."""
        if self._recent is not None:
            # A copy may come of a message whose markers were read already.
            return self._begun_at
        return min(offset, self._read_to) if self._unread else offset


def copy_of(message: Started, content: bytes, read_to: int, now_ms: int) -> Marker:
    """Return a copy of a message's Start, `content`, with the rest of its deadline.

    The markers were read up to `read_to`.
    """
    marker = decode(content)
    marker.key = message.queue
    marker.origin_id = marker.origin_id or marker.message_id
    marker.redeliver_after_ms = message.deadline_ms - now_ms
    marker.timeout_ms = message.timeout_ms or None
    marker.undelivered = message.undelivered
    if message.id[0] != SYNTHETIC:
        marker.first_started_ms = marker.first_started_ms or message.started_ms
    marker.read_to = read_to
    return marker
