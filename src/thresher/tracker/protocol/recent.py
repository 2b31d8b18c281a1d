"""Remembers the last markers of messages that are not in progress, for copies that come later.

A copy of a Start holds the message's state when its tracker had read the markers up to an offset. The message's markers
between that offset and the copy are newer than the copy, although they are read before it. A copy that lies more than
`WINDOW` offsets after that offset is void.
"""

from operator import itemgetter
from typing import Any

from thresher.queue.wire.marker import Marker, MarkerType, MessageId, encode, parse
from thresher.tracker.protocol.started import Id, Origin

# The number of offsets whose markers are remembered at least. A copy's transaction is open for milliseconds, and 15 s
# at most.
WINDOW = 100_000

# The characters of a rejection's reason that are remembered.
_MOST_REASON = 200
# Nothing but its type matters of an End.
_END = parse(encode(Marker(type=MarkerType.END, message_id=MessageId(0, 0))))

# kafka-mq-go's markers name no origin.
_Noted = dict[tuple[Id, Origin | None], tuple[int, Any]]


class RecentMarkers:
    """The last End or reject, and the last KeepAlive, of each message among the last markers of a partition."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._first = 0
        # Ends and rejects, and KeepAlives; each in an older and a newer half.
        self._final: tuple[_Noted, _Noted] = ({}, {})
        self._kept: tuple[_Noted, _Noted] = ({}, {})

    def note(self, id_: Id, offset: int, marker: Any) -> None:
        """Remember a message's marker that was read at this offset."""
        if offset - self._first > self._window:
            self._final, self._kept, self._first = (self._final[1], {}), (self._kept[1], {}), offset
        (self._final if is_last(marker) else self._kept)[1][id_, named_origin(marker)] = (offset, _noted(marker))

    def after(self, id_: Id, origin: Origin, offset: int) -> Any | None:
        """Return the message's last marker at or after this offset.

        An End or reject takes precedence over any KeepAlive.
        """
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


def _noted(marker: Any) -> Any:
    """Return what matters of a marker for a copy: there may be 200,000 of them, and a stranger's may have 5 kB each."""
    if marker.type == MarkerType.END:
        return _END
    noted = type(marker)(
        type=marker.type,
        redeliver_after_ms=marker.redeliver_after_ms,
        released=marker.released,
        undelivered=marker.undelivered,
    )
    if marker.HasField("reject_reason"):
        noted.reject_reason = marker.reject_reason[:_MOST_REASON]
    return noted


def named_origin(marker: Any) -> Origin | None:
    """Return the origin in a marker; None if the marker applies to the message that currently has the id."""
    return origin_of(marker) if marker.HasField("origin_id") else None


def origin_of(marker: Any) -> Origin:
    """Return the origin of a marker's message."""
    given = marker.origin_id if marker.HasField("origin_id") else marker.message_id
    return (given.partition, given.offset, marker.enqueued_at_ms)


def is_last(marker: Any) -> bool:
    """Whether a marker is final: no KeepAlive changes an End or a reject."""
    return bool(marker.type == MarkerType.END or marker.HasField("reject_reason"))
