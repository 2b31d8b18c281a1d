"""When the offset is committed: after a number of markers or a second, and at most five times a second."""

_SECONDS, _LEAST_SECONDS = 1.0, 0.2
_DAY_SECONDS = 86_400.0


class CommitPace:
    """Schedules one partition's commits. Reads no clock."""

    def __init__(self, start: int, markers: int) -> None:
        self._committed, self._at = start, float("-inf")
        self._markers, self._since = markers, 0

    def taken(self) -> None:
        """Count a marker."""
        self._since += 1

    def is_due(self, at: float) -> bool:
        """Whether a commit is due."""
        since = at - self._at
        return since >= _LEAST_SECONDS and (self._since >= self._markers or since >= _SECONDS)

    def is_new(self, offset: int, at: float) -> bool:
        """Whether the offset differs from the committed one, or a day has passed.

        A broker deletes offsets of idle groups.
        """
        return offset != self._committed or at - self._at > _DAY_SECONDS

    def committed(self, offset: int, at: float) -> None:
        """Register that the offset is committed."""
        self._committed, self._at, self._since = offset, at, 0
