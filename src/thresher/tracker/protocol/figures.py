"""The counters of one partition, which `meter` reports."""

from collections import Counter, deque

from thresher.tracker.protocol.transaction import Dead, Fate

# How many non-markers are reported at once.
_MOST_MALFORMED = 10


class Figures:
    """The counters of one partition. For one thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        # Redelivered and dead messages by queue. The meter clears it after each report, because there may be many
        # queues.
        self.by_queue: Counter[tuple[str, bytes]] = Counter()
        # The last records that are not markers: offset and reason. The meter clears it after each report.
        self.malformed: deque[tuple[int, str]] = deque(maxlen=_MOST_MALFORMED)

    def set_aside(self, offset: int, why: str) -> None:
        """Count a record that is not a marker and was skipped."""
        self.counts["malformed"] += 1
        self.malformed.append((offset, why))

    def decided(self, queue: bytes, fate: Fate) -> None:
        """Count a message that was redelivered or became a dead letter."""
        kind = "redelivered"
        if isinstance(fate, Dead):
            kind = "dead"
            self.counts[f"dead.{fate.kind}"] += 1
        self.counts[kind] += 1
        self.by_queue[kind, queue] += 1
