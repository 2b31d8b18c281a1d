"""Topics of which row after row of records cannot be applied: each waits alone, and is tried again from time to time.

A producer's records, or one wrong mapping, must not stop the other topics. The capture ends if no other topic is left.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from thresher.capture.problem import RecordsKeepFailing

# How long a topic waits before it is tried again: somebody may have corrected its table.
RETRY_SECONDS = 60.0
# How much is told: it has to fit into an event, and a reason may quote a producer's whole value.
_TOLD_TOPICS, _TOLD_CHARACTERS = 20, 400


@dataclass(slots=True)
class _Failing:
    why: str
    # None while the topic is tried.
    retry_at: float | None


class FailingTopics:
    """The failing topics of one attempt of a shard. For one thread; the time is passed in."""

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics
        self._failing: dict[str, _Failing] = {}

    def fail(self, error: RecordsKeepFailing, now: float) -> None:
        """Let the error's topic wait. Raises the error if every topic fails."""
        if len(self._failing.keys() | {error.topic}) == len(self._topics):
            raise error
        self._failing[error.topic] = _Failing(error.what[:_TOLD_CHARACTERS], now + RETRY_SECONDS)

    def applied(self, topics: Collection[str]) -> None:
        """Note that records of these topics were applied."""
        for topic in topics:
            self._failing.pop(topic, None)

    def waits(self, topic: str) -> bool:
        """Whether a topic is not to be read now."""
        found = self._failing.get(topic)
        return found is not None and found.retry_at is not None

    def due(self, now: float) -> list[str]:
        """Return the topics to be tried again now. They no longer wait."""
        due = [topic for topic, each in self._failing.items() if each.retry_at is not None and now >= each.retry_at]
        for topic in due:
            self._failing[topic].retry_at = None
        return due

    def reasons(self) -> Mapping[str, str]:
        """Return failing topics with the reasons, also those that are tried: the first of them, if they are many."""
        return {topic: each.why for topic, each in islice(self._failing.items(), _TOLD_TOPICS)}


def why_fails(what: str) -> str:
    """Return why a topic waits whose records keep failing, and what a person can do."""
    return (
        f"{what}. The other topics go on, and this one is tried again every {RETRY_SECONDS:.0f} s: correct the table, "
        "or restart the capture with a corrected mapping or with another most_dead_in_a_row"
    )
