"""Which reads of a head go by age, and which by buckets."""

# So many reads go by age, then one by buckets. With more shards, too many rows of others would be stepped over.
_BY_AGE, _MOST_SHARDS = 6, 2
# One that takes so many times as long for a row steps over too much: so many go by buckets then, more the next time.
_SLOW, _PENANCE, _MOST_PENANCE = 3.0, 16, 1_024
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
        # What a row takes to be read by buckets.
        self._usual_seconds = 0.0

    @property
    def by_age(self) -> bool:
        """Whether the next read goes by age."""
        return self._left > 0

    def stop(self) -> None:
        """Nothing is on its way: the next read is not by age."""
        self._left = 0

    def rows_by_buckets(self, rows: int) -> int:
        """Return how many rows to ask for by buckets, where so many are wanted."""
        return max(1, rows // _BETWEEN) if self._between else rows

    def learn(self, found: int, rows: int, seconds: float, *, even: bool = False) -> None:
        """Take in a read: how many rows it found and wanted, what it took, and whether all buckets have many."""
        each_seconds = seconds / max(1, found)
        if self._left == 0:
            self._usual_seconds = each_seconds
            self._rest = max(0, self._rest - 1)
            self._between = False
            if even and found >= rows and self._allowed and self._rest == 0:
                self._left = _BY_AGE
        elif found < rows:
            # All that there was. Where nothing was, that is so for as long as there are rows on their way.
            self._left = 1 if found == 0 or found >= _SHORT * rows else 0
        elif each_seconds > _SLOW * self._usual_seconds:
            self._left, self._rest, self._penance = 0, self._penance, min(2 * self._penance, _MOST_PENANCE)
        else:
            self._left -= 1
            self._between = self._left == 0
            self._penance = _PENANCE
