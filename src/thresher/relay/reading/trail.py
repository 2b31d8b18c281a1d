"""How far a head was read by age, and whether the next read may go on there instead of beginning at the head again.

A read from the head has met every row that was committed when it began, up to the last one it gave. A row behind that
one, whose transaction had ended by then too, was committed by then; and so was whatever comes before it, which is what
was committed before it was written. All of that has been met, or comes in this very read, which goes by age. So reads
may go on behind the last row, up to the first one whose transaction had not ended: what comes from there on may have to
wait for a row that was committed late.

They may not where the first one left something out that a later one would not, because its topic was held or its key
was blocked; nor when rows have gone back.
"""

from thresher.relay.reading.penance import Penance

# What is committed late among what was met waits for the next read from the head. (And within days, a busy server
# counts its transactions round, and what was new looks old.)
_LIFE_SECONDS = 10.0
# Below every id that is drawn, and the highest there is.
LOWEST, HIGHEST = -(2**63), 2**63 - 1


class Trail:
    """Where the last read by age ended."""

    def __init__(self) -> None:
        self._horizon: str | None = None
        self._generation = -1
        self._until = 0.0
        self._penance = Penance()
        # Reads go on behind this id.
        self.last = LOWEST

    def begin(self, horizon: str | None, generation: int) -> None:
        """A read begins at the head: the oldest transaction that had not ended before it, or None if anything is left
        out; and how often rows had gone back."""
        self._penance.serve()
        self._horizon = horizon if self._penance.over else None
        self._generation, self.last = generation, LOWEST

    def horizon(self, generation: int, now: float) -> str | None:
        """Return the transaction up to which the next read may go on, if it may."""
        fresh = generation == self._generation and now < self._until and self.last > LOWEST
        return self._horizon if fresh else None

    def began(self, last: int, now: float) -> None:
        """The read from the head gave all that it wanted, up to this id."""
        self.last, self._until = last, now + _LIFE_SECONDS

    def went(self, last: int) -> None:
        """One that went on gave all that there was up to this id."""
        self._penance.forgive()
        self.last = last

    def leave(self) -> None:
        """Reads do not go by age any more, and what kept them from going on may be over when they do again."""
        self.end()
        self._penance.forget()

    def end(self, *, futile: bool = False) -> None:
        """A read gave less: there is no more, or it is not old enough. Futile if it went on and gave next to nothing,
        because somebody's transaction has been open for long."""
        self._horizon = None
        if futile:
            self._penance.begin()
