"""What a tracker has counted of one partition, for whoever tells of it."""

from collections import Counter, deque

from thresher.tracker.protocol.transaction import Dead, Fate

# Records that are no markers are told of, up to so many at once.
_MOST_MALFORMED = 10


class Figures:
    """The figures of one partition. For one thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        # What became of messages, by queue: there may be many queues. Whoever tells of it clears it.
        self.by_queue: Counter[tuple[str, bytes]] = Counter()
        # The last records that are no markers: offset, and why. Whoever tells of it clears it.
        self.malformed: deque[tuple[int, str]] = deque(maxlen=_MOST_MALFORMED)

    def set_aside(self, offset: int, why: str) -> None:
        """Take in that a record is no marker, and was passed over."""
        self.counts["malformed"] += 1
        self.malformed.append((offset, why))

    def decided(self, queue: bytes, fate: Fate) -> None:
        """Take in what became of a message."""
        kind = "redelivered"
        if isinstance(fate, Dead):
            kind = "dead"
            self.counts[f"dead.{fate.kind}"] += 1
        self.counts[kind] += 1
        self.by_queue[kind, queue] += 1
