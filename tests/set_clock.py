"""A clock for code that takes one as a parameter."""


class SetClock:
    """A monotonic clock that the test sets, by `now`."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
