"""How long to leave something that was tried in vain."""

_FIRST, _MOST = 16, 1_024


class Penance:
    """So many reads are done without it; twice as many the next time, unless it was worth while in between."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._left = 0

    @property
    def over(self) -> bool:
        """Whether it may be tried again."""
        return self._left == 0

    def begin(self) -> None:
        """It was in vain."""
        self._left, self._next = self._next, min(2 * self._next, _MOST)

    def serve(self) -> None:
        """A read is done without it."""
        self._left = max(0, self._left - 1)

    def forgive(self) -> None:
        """It was worth while."""
        self._next = _FIRST

    def forget(self) -> None:
        """Whatever made it vain may be over."""
        self._left, self._next = 0, _FIRST
