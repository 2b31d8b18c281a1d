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

_Noted = dict[Id, tuple[int, Any]]


class RecentMarkers:
    """The last marker of each message, and the last that no KeepAlive changes, among the last of a partition."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._first = 0
        # The older and the newer half: Ends and rejects, and KeepAlives.
        self._final: tuple[_Noted, _Noted] = ({}, {})
        self._kept: tuple[_Noted, _Noted] = ({}, {})

    def note(self, id_: Id, offset: int, marker: Any) -> None:
        """Remember a message's marker, which was read at this offset."""
        if offset - self._first > self._window:
            self._final, self._kept, self._first = (self._final[1], {}), (self._kept[1], {}), offset
        (self._final if is_last(marker) else self._kept)[1][id_] = (offset, marker)

    def after(self, id_: Id, offset: int) -> Any | None:
        """Return the message's last marker that is not before this offset. A KeepAlive takes back no End, no reject."""
        for older, newer in (self._final, self._kept):
            found = newer.get(id_) or older.get(id_)
            if found is not None and found[0] >= offset:
                return found[1]
        return None


def is_last(marker: Any) -> bool:
    """Whether no KeepAlive changes what a marker says of its message."""
    return bool(marker.type == MarkerType.END or marker.HasField("reject_reason"))
