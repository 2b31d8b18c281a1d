"""The last markers of messages that are not known, for copies that come later.

A copy of a Start tells how its message stood when its writer had read to an offset. Markers between that and the copy
are later ones, although they are read before it. A copy that was written further behind than `WINDOW` is void.
"""

from operator import itemgetter
from typing import Any

from thresher.queue.wire.marker import MarkerType
from thresher.tracker.protocol.started import Id, Origin

# As many markers are remembered at least. A transaction is open for 15 s at most, and short of a broker's trouble for
# milliseconds.
WINDOW = 100_000

# kafka-mq-go's markers name no origin.
_Noted = dict[tuple[Id, Origin | None], tuple[int, Any]]


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
        (self._final if is_last(marker) else self._kept)[1][id_, named_origin(marker)] = (offset, marker)

    def after(self, id_: Id, origin: Origin, offset: int) -> Any | None:
        """Return the message's last marker that is not before this offset. A KeepAlive takes back no End, no reject."""
        for halves in (self._final, self._kept):
            found = [
                noted
                for half in halves
                for named in (origin, None)
                if (noted := half.get((id_, named))) is not None and noted[0] >= offset
            ]
            if found:
                return max(found, key=itemgetter(0))[1]
        return None


def named_origin(marker: Any) -> Origin | None:
    """Return the origin that a marker names; None where it means whichever message has the id."""
    return origin_of(marker) if marker.HasField("origin_id") else None


def origin_of(marker: Any) -> Origin:
    """Return by what the message of a marker is known."""
    given = marker.origin_id if marker.HasField("origin_id") else marker.message_id
    return (given.partition, given.offset, marker.enqueued_at_ms)


def is_last(marker: Any) -> bool:
    """Whether no KeepAlive changes what a marker says of its message."""
    return bool(marker.type == MarkerType.END or marker.HasField("reject_reason"))
