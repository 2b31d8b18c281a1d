"""The last markers of messages that are not known, for copies that come later.

A copy of a Start tells how its message stood when its writer had read to an offset. Markers between that and the copy
are later ones, although they are read before it. A copy that was written further behind than `WINDOW` is void.
"""

from typing import Any

from thresher.queue.wire.marker import MarkerType
from thresher.tracker.protocol.state import Id

# As many markers are remembered at least. A transaction is open for 15 s at most, and short of a broker's trouble for
# milliseconds.
WINDOW = 100_000


class RecentMarkers:
    """The last marker of each message, among the last markers of a partition."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._first = 0
        self._before: dict[Id, tuple[int, Any]] = {}
        self._now: dict[Id, tuple[int, Any]] = {}

    def note(self, id_: Id, offset: int, marker: Any) -> None:
        """Remember a message's marker, which was read at this offset. A KeepAlive takes back no End and no reject."""
        if offset - self._first > self._window:
            self._before, self._now, self._first = self._now, {}, offset
        before = self._now.get(id_) or self._before.get(id_)
        if before is not None and marker.type == MarkerType.KEEPALIVE and is_last(before[1]):
            marker = before[1]
        self._now[id_] = (offset, marker)

    def after(self, id_: Id, offset: int) -> Any | None:
        """Return the message's last marker if it is not before this offset."""
        found = self._now.get(id_) or self._before.get(id_)
        return None if found is None or found[0] < offset else found[1]


def is_last(marker: Any) -> bool:
    """Whether no KeepAlive changes what a marker says of its message."""
    return bool(marker.type == MarkerType.END or marker.HasField("reject_reason"))
