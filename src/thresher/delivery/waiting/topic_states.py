"""States of topics that cannot be written to, and whose rows therefore wait.

1. A topic that the cluster calls unavailable waits until the cluster calls it available.
2. A topic that refused a record, or did not answer for one, although the cluster calls it available, is tried again
   after a while. Its wait ends only when it takes a record.
3. If a state has a kind, rows are set aside as dead with that kind once the grace is over. Without a kind, rows wait
   for as long as it takes.
4. A bounded number of topics have a grace at a time (`Rules.most_graces`). Rows of further missing topics are set aside
   without one. The waits of 5,000 are kept for later attempts: of those that have waited longest.
5. A state goes on with the wait of an earlier attempt that was kept, if it begins before that wait is forgotten.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest

from thresher.delivery.fate import DEAD_KINDS, Kind
from thresher.delivery.waiting.grace import Grace, waited
from thresher.kafka.topic_status import TopicStatus, Unavailable

# The pause before the next try. A refusal costs the other topics a recovery; no answer also costs a flush's time-out.
_REFUSED_SECONDS = 1.0
_SILENT_SECONDS, _LONGEST_SILENT_SECONDS = 5.0, 60.0
# The topics of a shard whose waits are kept: a writer may name any number of them.
MOST_KEPT = 5_000
NOT_LOOKED_AT = "it is one of many new topics, and the cluster has not been asked about it yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """Why a topic cannot be written to, since when, and how many tries have failed."""

    kind: Kind | None
    why: str
    waited: Grace
    tries: int = 0
    # After a failed try: when the next one is due.
    retry_at: float = 0.0
    # So many other topics waited already that this one has no grace.
    crowded: bool = False

    def unseen(self, now: float, grace_seconds: float) -> bool:
        """Whether no row came for long, although one could have been tried."""
        seen = max(self.waited.seen, self.retry_at)
        return replace(self.waited, seen=seen).forgotten(now, grace_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The topics whose rows wait, and those whose wait is over. `due`: did not answer, and may be tried again."""

    topics: Mapping[str, TopicState]
    lifted: tuple[str, ...] = ()
    due: tuple[str, ...] = ()


class TopicStates:
    """The states, by topic. For one thread; the time is passed in."""

    def __init__(self, grace_seconds: float, most_graces: int) -> None:
        self._grace_seconds, self._most_graces = grace_seconds, most_graces
        self._states: dict[str, TopicState] = {}
        # Topics of the states that have a kind.
        self._missing: set[str] = set()
        # Waits of earlier attempts, of topics that were not surveyed yet.
        self._earlier: dict[str, Grace] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def go_on(self, waits: Mapping[str, float], now: float) -> None:
        """Go on with the waits of earlier attempts: for how many seconds each topic was missing."""
        self._earlier = {topic: Grace(now - seconds, now) for topic, seconds in waits.items()}

    def waits(self, now: float) -> dict[str, float]:
        """Return for how many seconds topics have been missing that have a grace, or that waited earlier."""
        forgotten = [each for each, grace in self._earlier.items() if grace.forgotten(now, self._grace_seconds)]
        for topic in forgotten:
            del self._earlier[topic]
        known = ((topic, self._states[topic]) for topic in self._missing)
        graces = {**self._earlier, **{topic: state.waited for topic, state in known if not state.crowded}}
        longest = nsmallest(MOST_KEPT, graces, key=lambda topic: graces[topic].since)
        return {topic: now - graces[topic].since for topic in longest}

    def overdue(self, topic: str, now: float) -> bool:
        """Whether the grace of a topic's rows is over by now."""
        state = self._states.get(topic)
        return state is not None and state.kind is not None and self._over(state, now)

    def unknown(self, topics: Iterable[str], now: float) -> dict[str, TopicState]:
        """Return the states of topics that the cluster was not asked about, because too many are new."""
        new = TopicState(kind=None, why=NOT_LOOKED_AT, waited=Grace(now, now))
        return {topic: self._states.setdefault(topic, new) for topic in topics}

    def forget_unseen(self, now: float, held: Container[str]) -> list[str]:
        """Forget topics that are not held and whose rows did not come for long; return them."""
        unseen = [
            topic
            for topic, state in self._states.items()
            if topic not in held and state.unseen(now, self._grace_seconds)
        ]
        for topic in unseen:
            self._drop(topic)
        return unseen

    def _drop(self, topic: str) -> TopicState | None:
        self._missing.discard(topic)
        return self._states.pop(topic, None)

    def surveyed(self, statuses: Mapping[str, TopicStatus], now: float) -> Waiting:
        """Note the topics' status by the cluster, and return which of them wait."""
        waiting: dict[str, TopicState] = {}
        lifted, due = [], []
        for topic, status in statuses.items():
            state = self._states.get(topic)
            if isinstance(status, Unavailable):
                waiting[topic] = self._note(topic, DEAD_KINDS.get(status.refusal), status.why, now)
            elif state is None:
                self._earlier.pop(topic, None)
            elif not state.tries:
                self._drop(topic)
                lifted.append(topic)
            elif now < state.retry_at:
                waiting[topic] = state
            elif state.kind is None:
                due.append(topic)
        return Waiting(topics=waiting, lifted=tuple(lifted), due=tuple(due))

    def put_off(self, topics: Iterable[str], now: float) -> Mapping[str, TopicState]:
        """Put off the next try of every topic that did not answer, longer each time; return the states of `topics`."""
        for topic, state in self._states.items():
            if state.kind is None and state.tries:
                tries = state.tries + 1
                self._states[topic] = replace(state, tries=tries, retry_at=now + _pause(tries))
        return {topic: self._states[topic] for topic in topics if topic in self._states}

    def refused(self, topic: str, kind: Kind | None, why: str, now: float) -> None:
        """Note that a topic refused a record; without a kind, that it did not answer for one."""
        state = self._note(topic, kind, why, now)
        pause = _REFUSED_SECONDS if kind is not None else _pause(state.tries)
        self._states[topic] = replace(state, tries=state.tries + 1, retry_at=now + pause)

    def delivered(self, topics: Iterable[str]) -> list[str]:
        """Note that these topics took records, and return those whose wait this ends."""
        return [topic for topic in topics if self._drop(topic) is not None] if self._states else []

    def is_missing(self, topic: str) -> bool:
        """Whether a topic is known to be missing or forbidden, so that a grace runs for its rows."""
        state = self._states.get(topic)
        return state is not None and state.kind is not None

    def expired(self, state: TopicState) -> bool:
        """Whether the grace of a topic's rows is over: they are dead."""
        return state.kind is not None and self._over(state, state.waited.seen)

    def _over(self, state: TopicState, now: float) -> bool:
        return state.crowded or now - state.waited.since >= self._grace_seconds

    def _note(self, topic: str, kind: Kind | None, why: str, now: float) -> TopicState:
        before = self._states.get(topic)
        # A grace begins when the state first has a kind.
        same = None
        if kind is not None:
            earlier = self._earlier.pop(topic, None)
            same = before.waited if before is not None and before.kind is not None else earlier
        state = TopicState(
            kind=kind,
            why=why,
            waited=waited(same, now, self._grace_seconds),
            tries=before.tries if before is not None else 0,
            retry_at=before.retry_at if before is not None else 0.0,
            crowded=kind is not None
            and (
                before.crowded
                if topic in self._missing and before is not None
                else len(self._missing) >= self._most_graces
            ),
        )
        (self._missing.add if kind is not None else self._missing.discard)(topic)
        self._states[topic] = state
        return state


def _pause(tries: int) -> float:
    """Return the pause before the next try of a topic that did not answer."""
    return min(_LONGEST_SILENT_SECONDS, _SILENT_SECONDS * 2.0 ** min(tries, 10))
