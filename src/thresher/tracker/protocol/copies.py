"""Starts that are written anew, so that the markers before them can go; and copies that earlier trackers have written.

A copy tells how its message stood when its writer had read to an offset.

1. That offset is what the message needs: the committed offset stays below it, also until the copy was read.
2. The message's markers between that and the copy are later ones, though they are read before it. See `recent`.
3. A copy that lies further behind than is remembered is void. So is one whose writer had read less than the committed
   offset: a message in progress would have kept that back.
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
        """The tracker reads from `start` on; without `committed`, that is no committed offset, and tells nothing."""
        self._begun_at, self._window = start, window
        self._least_read_to = start if committed else 0
        # While it rebuilds: copies of earlier trackers may come.
        self._recent: RecentMarkers | None = RecentMarkers(window)
        # Our own that were written and not read: how many, what was read before, and of which messages; and the Ends
        # of these messages.
        self._unread, self._read_to, self._written_at = 0, start, 0.0
        self._messages: frozenset[tuple[Id, Origin]] = frozenset()
        self._late = RecentMarkers(window)

    @property
    def unread(self) -> bool:
        """Whether copies were written that were not read yet."""
        return self._unread > 0

    def rebuilt(self) -> None:
        """Take in that all that earlier trackers have written was read."""
        self._recent = None

    def written(self, messages: Iterable[Started], read_to: int, at: float) -> None:
        """Take in that copies of these messages are committed, written when markers were read to that offset."""
        self._written_at = at
        # Not the objects: a second Start replaces them.
        self._messages = frozenset((message.id, message.origin) for message in messages)
        self._unread, self._read_to = len(self._messages), read_to

    def give_up(self, at: float) -> None:
        """Wait no longer for copies that were not read for long, though all was read: the broker has lost them."""
        if self._unread and at - self._written_at > LOST_SECONDS:
            self._unread = 0

    def counts(self, offset: int, read_to: int) -> bool:
        """Take in a copy that was read at this offset, and return whether it counts."""
        if self._recent is None:
            # Nobody else can write one any more.
            self._unread = max(0, self._unread - 1)
        return self._least_read_to <= read_to <= offset <= read_to + self._window

    def unknown(self, id_: Id, offset: int, marker: Any) -> None:
        """Take in a marker of a message that is not known, or not any more."""
        if self._recent is not None:
            self._recent.note(id_, offset, marker)

    def ended(self, message: Started, offset: int, marker: Any) -> None:
        """Take in the End of a message that was in progress."""
        if (message.id, message.origin) in self._messages:
            self._late.note(message.id, offset, marker)
        self.unknown(message.id, offset, marker)

    def later(self, id_: Id, origin: Origin, read_to: int) -> Any | None:
        """Return the last marker of a message that is later than its copy, although it was read before."""
        recent = None if self._recent is None else self._recent.after(id_, origin, read_to)
        return recent or self._late.after(id_, origin, read_to)

    def needed(self, offset: int) -> int:
        """Return what may be committed where this offset could be, but for copies."""
        if self._recent is not None:
            # A copy may come of a message whose markers were passed already.
            return self._begun_at
        return min(offset, self._read_to) if self._unread else offset


def copy_of(message: Started, read_to: int, now_ms: int) -> Marker:
    """Return a message's Start anew, with what is left of its deadline, where markers were read to that offset."""
    marker = decode(message.content or b"")
    marker.key = message.queue
    marker.origin_id = marker.origin_id or marker.message_id
    marker.redeliver_after_ms = message.deadline_ms - now_ms
    marker.timeout_ms = message.patience_ms or None
    marker.undelivered = message.undelivered
    if message.id[0] != SYNTHETIC:
        marker.first_started_ms = marker.first_started_ms or message.started_ms
    marker.read_to = read_to
    return marker
