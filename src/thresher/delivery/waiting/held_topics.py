"""Topics that are left out of reads until the cluster calls them available, however many they are.

1. The cluster is asked about a few hundred of them at a time, in turn, and only for a fifth of the time.
2. Rows of topics whose grace is over are read by sweeps: a few hundred at a time, between other rows.
3. While too many topics are held to name them in each read, reads are confined to topics that were available lately.
   The cluster is asked for the names of all its topics from time to time, so that reads find rows of the others too.
"""

from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any

from thresher.delivery.effects import Confine, Effect, Lift, ListTopics, Survey, Sweep, Unhold
from thresher.delivery.waiting.topic_states import TopicStates
from thresher.kafka.topic_status import Surveyed

# How many held topics the cluster is asked about at once, and the pause: at least, and as a multiple of the time of
# the question.
_LOOK_TOPICS, _LOOK_SECONDS, _PAUSES = 250, 0.2, 4.0
# The most topics of a sweep.
_SWEPT_TOPICS = 2_000
# If more topics are held, only topics that were available lately are read, which are fewer; and the most of these.
_MOST_HELD = 200
_MOST_GOOD = 10_000
# The pause before the cluster is asked for all names again: at least, and as a multiple of the time of the question.
_LIST_SECONDS, _LIST_PAUSES = 2.0, 20.0


class HeldTopics:
    """The held topics of one attempt, with `states` that say why. For one thread; the time comes with surveys."""

    def __init__(self, states: TopicStates) -> None:
        self._states = states
        # The next to ask about first.
        self._held: dict[str, None] = {}
        # Topics that sweeps may be reading.
        self._sweeping: frozenset[str] = frozenset()
        # Topics that were available, the latest last; and those to which reads are confined.
        self._good: dict[str, None] = {}
        self._confined: frozenset[str] | None = None
        self._next_look = 0.0
        # All topics of the cluster, by the last answer.
        self._existing: frozenset[str] = frozenset()
        self._next_list = 0.0

    def hold(self, topics: Iterable[str]) -> None:
        """Note that these topics are left out of reads."""
        self._held.update(dict.fromkeys(topics))

    def available(self, topics: Iterable[str]) -> None:
        """Note that these topics are available."""
        for topic in topics:
            self._good.pop(topic, None)
            self._good[topic] = None

    def tend(self) -> Generator[Effect, Any, None]:
        """Ask about held topics: those that are available now are read again, others set aside when due."""
        now = (yield Survey(frozenset())).now
        if now < self._next_look:
            return
        overdue = self._overdue(now)
        if overdue or self._sweeping:
            swept: frozenset[str] = yield Sweep(overdue)
            self._sweeping = overdue - swept
            self._unhold(swept)
            for topic in swept:
                yield Lift(topic)
        for topic in self._states.forget_unseen(now, self._held.keys()):
            yield Lift(topic)
        held = self._next()
        if held:
            answer: Surveyed = yield Survey(frozenset(held))
            found = self._states.surveyed(answer.topics, answer.now)
            free = answer.topics.keys() & set(held) - found.topics.keys()
            if free:
                self._unhold(free)
                self.available(free)
                yield Unhold(frozenset(free))
            for topic in found.lifted:
                yield Lift(topic)
        yield from self._confine(now)
        then = (yield Survey(frozenset())).now
        self._next_look = then + max(_LOOK_SECONDS, _PAUSES * (then - now))

    def _overdue(self, now: float) -> frozenset[str]:
        """Return held topics whose rows are to be set aside."""
        over = (topic for topic in self._held if self._states.overdue(topic, now))
        return frozenset(islice(over, _SWEPT_TOPICS))

    def _next(self) -> list[str]:
        """Return the held topics whose turn it is to be asked about."""
        turn = list(islice(self._held, _LOOK_TOPICS))
        for topic in turn:
            del self._held[topic]
        self._held.update(dict.fromkeys(turn))
        return turn

    def _unhold(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._held.pop(topic, None)

    def _confine(self, now: float) -> Generator[Effect, Any, None]:
        while len(self._good) > _MOST_GOOD:
            del self._good[next(iter(self._good))]
        held = len(self._held)
        if held > _MOST_HELD:
            listed = self._existing
            if now >= self._next_list:
                yield from self._list()
            known = self._confined is not None and self._good.keys() <= self._confined
            if not known or self._existing != listed:
                self._confined = frozenset(self._good)
                yield Confine(self._confined, self._existing)
        elif self._confined is not None and held < _MOST_HELD // 2:
            self._confined = None
            yield Confine(None)

    def _list(self) -> Generator[Effect, Any, None]:
        """Ask for the names of all topics. Without an answer, those of the last one count."""
        began = (yield Survey(frozenset())).now
        names: frozenset[str] | None = yield ListTopics()
        then = (yield Survey(frozenset())).now
        self._next_list = then + max(_LIST_SECONDS, _LIST_PAUSES * (then - began))
        if names is not None:
            self._existing = names
