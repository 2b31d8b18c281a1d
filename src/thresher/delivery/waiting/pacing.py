"""Topics of which row after row is refused: each try costs all other rows a recovery, so the tries are spaced.

1. A topic is **paced** once many of its rows were found to be poison within a minute of each other.
2. A transaction with rows of a paced topic has rows of no other topic, and few of them.
3. After such a transaction was rejected, the rows of the topic wait for a few seconds. Its good rows wait with them.
4. A minute after the last refusal, the topic is paced no more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# After so many poison rows, each a minute at most after the one before, a topic is paced.
_FREE = 10
_MINUTE_SECONDS = 60.0
# The pause after a rejection. While a topic is paced, recoveries for it take a small part of the time.
_PAUSE_SECONDS = 3.0
# The rows of a paced topic in a transaction.
MOST_ROWS = 64
# The most topics that are remembered.
_MOST_TOPICS = 1_000
WHY = "many of its rows were refused: they are tried a few at a time, with pauses, because each refusal stops all rows"


@dataclass(slots=True)
class _Refusals:
    found: int
    last: float
    until: float = 0.0


class Pacing:
    """The paced topics of one attempt. For one thread; the time is passed in."""

    def __init__(self) -> None:
        self._topics: dict[str, _Refusals] = {}

    def __bool__(self) -> bool:
        """Whether any topic is paced."""
        return any(known.found >= _FREE for known in self._topics.values())

    def found(self, topic: str, now: float) -> None:
        """Note that a row of the topic was refused alone, or by name."""
        known = self._topics.pop(topic, None)
        again = known is not None and now - known.last <= _MINUTE_SECONDS
        self._topics[topic] = _Refusals(known.found + 1, now, known.until) if known and again else _Refusals(1, now)
        if len(self._topics) > _MOST_TOPICS:
            del self._topics[next(iter(self._topics))]

    def rejected(self, topics: Collection[str], now: float) -> None:
        """Note that a transaction with rows of these topics was rejected: rows of a paced one wait for a while."""
        for topic in topics:
            if self.paced(topic):
                self._topics[topic].last = now
                self._topics[topic].until = now + _PAUSE_SECONDS

    def paced(self, topic: str) -> bool:
        """Whether the rows of a topic go without those of others."""
        known = self._topics.get(topic)
        return known is not None and known.found >= _FREE

    def paused(self, topics: Mapping[str, object], now: float) -> list[str]:
        """Return those of the topics whose rows wait now."""
        return [topic for topic, known in self._topics.items() if topic in topics and now < known.until]

    def ended(self, now: float) -> list[str]:
        """Forget topics without a refusal for a minute; return those that were paced."""
        over = [topic for topic, known in self._topics.items() if now - known.last > _MINUTE_SECONDS]
        paced = [topic for topic in over if self.paced(topic)]
        for topic in over:
            del self._topics[topic]
        return paced
