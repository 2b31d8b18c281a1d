"""A shard's alarm about topics whose rows wait: a few of them by name, and the number of all.

A writer may name any number of topics. So an event names 50 of them at most, and the others are told as a number, now
and then.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

# An event has to fit into one message to the driver.
TOPICS_IN_AN_EVENT, _REASON_CHARACTERS = 50, 700
# Topics that were not named are told as a number, each time that so many are left.
_COUNTED = 100


class ReportEvent(Protocol):
    """Reports an event to the driver."""

    def __call__(self, name: str, **fields: object) -> None:
        """Report an event by name, with its fields."""


class TopicAlarm:
    """The topics of one shard that have an alarm. For one thread."""

    def __init__(self, report: ReportEvent) -> None:
        self._report = report
        # Topics with an alarm, and those of them that were named.
        self._waiting: set[str] = set()
        self._named: set[str] = set()

    @property
    def topics(self) -> frozenset[str]:
        """The topics with an alarm."""
        return frozenset(self._waiting)

    def raise_for(self, topics: Mapping[str, str]) -> None:
        """Raise the alarm about topics, each with its reason: by name, while few are named, and the number of all."""
        self._waiting.update(topics)
        room = max(0, TOPICS_IN_AN_EVENT - len(self._named.difference(topics)))
        named = (sorted(self._named.intersection(topics)) + sorted(topics.keys() - self._named))[:room]
        self._named.update(named)
        reasons: dict[str, list[str]] = defaultdict(list)
        for topic in named:
            reasons[topics[topic][:_REASON_CHARACTERS]].append(topic)
        self._report("held", reasons=reasons, of=len(self._waiting))

    def lift(self, topics: Iterable[str]) -> None:
        """Clear the alarm about topics. Those that were named are told, and now and then the number of those left."""
        before = len(self._waiting)
        self._waiting.difference_update(topics)
        named = sorted(self._named.intersection(topics))
        self._named.difference_update(named)
        left = len(self._waiting)
        if named or (left < before and left in {len(self._named), left // _COUNTED * _COUNTED}):
            self._report("lifted", topics=named, of=len(self._waiting))
