"""Which reads of a head go by age, and which by buckets."""

import math
from collections import Counter
from collections.abc import Collection, Mapping

from thresher.relay.reading.penance import Penance

# After so many reads by age it is seen what each bucket gave, once there are so many rows for each.
_BY_AGE, _ENOUGH = 6, 16
# A bucket that gave less than this part of an equal share has little; and no more than this part of them may.
_LITTLE, _MOST_QUIET = 0.25, 0.25
# One that takes so many times as long as it would at the best speed steps over too much; a machine that stalls makes
# one of them long, not two. The best speed is forgotten bit by bit.
_SLOW, _IN_SUCCESSION, _FORGETTING = 6.0, 2, 1.1
# It was worth while if those that went on from there took so many times as long together.
_WORTH = 5.0
# One that gave at least this part of what it wanted is followed by another: who has many may soon have more.
_SHORT = 0.1


class Turns:
    """Reads go by age after one by buckets has found that all of them have many.

    Rows of a bucket that has little would wait for all that is older. So every few reads there is one by buckets, of
    those alone; and where many have little, no read goes by age for a while. Nor where other shards leave so much
    behind that reads by age are slow.
    """

    def __init__(self, buckets: Collection[int], *, allowed: bool) -> None:
        """These are the shard's buckets; where it is not allowed, no read goes by age."""
        self._buckets = buckets
        self._allowed = allowed
        self._penance = Penance()
        # What a row takes at best.
        self._usual_seconds = math.inf
        self.stop()

    def stop(self) -> None:
        """Nothing is on its way, or rows are large: the next read is by buckets."""
        self.by_age = False
        # Where reads go by age: the buckets that are read by themselves before the next one.
        self.quiet: Collection[int] = ()
        # How many reads were slow in succession, and how long others have to go on until the last was worth while.
        self._slow, self._owed = 0, 0.0
        # What was read by age since it was last seen who has little.
        self._reads = 0
        self._given: Counter[int] = Counter()

    def by_buckets(self, found: int, rows: int, seconds: float, *, even: bool) -> None:
        """Take in a read by buckets: how many rows it found and asked for, what it took, whether all have many."""
        self._penance.serve()
        if found >= rows:
            self._note_speed(found, seconds)
            self.by_age = even and self._allowed and self._penance.over

    def from_head(self, given: Mapping[int, int], rows: int, seconds: float) -> None:
        """Take in a read by age from the head: how many rows of each bucket it gave, how many it should, and what it
        took."""
        found = sum(given.values())
        slow = seconds > _SLOW * self._usual_seconds * rows
        self._slow, self._owed = (self._slow + 1, _WORTH * seconds) if slow else (0, 0.0)
        if found >= rows:
            self._note_speed(found, seconds)
        if self._slow >= _IN_SUCCESSION:
            self.leave()
        elif found < _SHORT * rows:
            self.end()
        else:
            self._look_for_quiet(given)

    def went_on(self, given: Mapping[int, int], seconds: float) -> None:
        """Take in one that went on: how many rows of each bucket it gave, and what it took."""
        self._owed -= seconds
        if self._owed <= 0:
            self._slow = 0
        self._look_for_quiet(given)

    def leave(self) -> None:
        """Reads do not go by age for a while."""
        self._penance.begin()
        self.stop()

    def end(self) -> None:
        """All that there was is read. Where the last read from the head was slow and not worth while, the next burst of
        rows does not begin with another."""
        if self._slow:
            self.leave()
        else:
            self.stop()

    def quiet_read(self) -> None:
        """Take in that those which have little were read by themselves."""
        self.quiet = ()

    def quiet_rows(self, rows: int) -> int:
        """Return how many rows each of those that have little may give at once, where reads give so many: its equal
        share of all reads since the last time."""
        return math.ceil((_BY_AGE + 1) * rows / len(self._buckets))

    def _look_for_quiet(self, given: Mapping[int, int]) -> None:
        """See which buckets have little, if it is time for it."""
        self.quiet = ()
        self._reads += 1
        self._given.update(given)
        each = self._given.total() / len(self._buckets)
        if self._reads < _BY_AGE or each < _ENOUGH:
            return
        self.quiet = [bucket for bucket in self._buckets if self._given[bucket] < _LITTLE * each]
        self._reads = 0
        self._given.clear()
        if len(self.quiet) > _MOST_QUIET * len(self._buckets):
            self.leave()
        else:
            self._penance.forgive()

    def _note_speed(self, found: int, seconds: float) -> None:
        self._usual_seconds = min(seconds / found, _FORGETTING * self._usual_seconds)
