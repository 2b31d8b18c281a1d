"""Which reads of a head go by age, and which by buckets."""

import math

# So many reads go by age, then one by buckets. With more shards, too many rows of others would be stepped over.
_BY_AGE, _MOST_SHARDS = 6, 8
# One that takes so many times as long as it would at the best speed steps over too much; a machine that stalls makes
# one of them long, not two. So many go by buckets then, more the next time. The best speed is forgotten bit by bit.
_SLOW, _IN_SUCCESSION, _PENANCE, _MOST_PENANCE, _FORGETTING = 6.0, 2, 16, 1_024, 1.1
# A read by buckets between two by age is there for buckets that have little, and gives a part of what it could.
_BETWEEN = 4
# One that gave at least this part of what it wanted is followed by another: who has many may soon have more.
_SHORT = 0.1


class Turns:
    """Some go by age, after one by buckets has found that all of them have many.

    By buckets, one that has little is not kept waiting by the others; so every few reads go by them. And what other
    shards leave behind is not stepped over: where that makes reads by age slow, there are none for a while.
    """

    def __init__(self, *, share: float) -> None:
        """`share` is the part of all buckets that the shard has."""
        self._allowed = share * _MOST_SHARDS >= 1
        self._left = self._rest = 0
        self._penance = _PENANCE
        # Whether the reads before were by age, up to the last of them.
        self._between = False
        # What a row takes at best, and how many reads were slow in succession.
        self._usual_seconds = math.inf
        self._slow = 0

    @property
    def by_age(self) -> bool:
        """Whether the next read goes by age."""
        return self._left > 0

    @property
    def between(self) -> bool:
        """Whether the next read is by buckets between others by age."""
        return self._between

    def stop(self) -> None:
        """Nothing is on its way, or rows are large: the next read is by buckets, and not between others."""
        self._left, self._between = 0, False

    def rows_by_buckets(self, rows: int) -> int:
        """Return how many rows to ask for by buckets, where so many are wanted."""
        return max(1, rows // _BETWEEN) if self._between else rows

    def learn(self, found: int, rows: int, seconds: float, *, even: bool = False, wanted: int | None = None) -> None:
        """Take in a read: how many rows it found and asked for, what it took, whether all buckets have many; and how
        many were wanted, if that is more than it asked for."""
        slow = (self._left > 0 or self._between) and seconds > _SLOW * self._usual_seconds * (wanted or rows)
        self._slow = self._slow + 1 if slow else 0
        if found >= rows:
            self._usual_seconds = min(seconds / found, _FORGETTING * self._usual_seconds)
        if self._slow == _IN_SUCCESSION:
            self.stop()
            self._rest, self._penance, self._slow = self._penance, min(2 * self._penance, _MOST_PENANCE), 0
        elif self._left == 0:
            self._rest = max(0, self._rest - 1)
            self._between = False
            if even and found >= rows and self._allowed and self._rest == 0:
                self._left = _BY_AGE
        elif found < rows:
            # All that there was. Where nothing was, that is so for as long as there are rows on their way.
            self._left = 1 if found == 0 or found >= _SHORT * rows else 0
        else:
            self._left -= 1
            self._between = self._left == 0
            self._penance = self._penance if slow else _PENANCE
