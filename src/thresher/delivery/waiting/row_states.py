"""States of rows that could not be sent: each such row is suspect, waiting or poison.

1. **Suspect**: the row was in a rejected transaction, and the broker did not name the bad row. The rows of that
   transaction are a group. From now on, a transaction has rows of one group only, and at most half of the group. If it
   is rejected too, its rows are the new group, and the others are suspect no more. So each rejection halves a group,
   whichever rows are read first.
2. **Waiting**: the row's partition is missing, or the broker refuses the row's own timestamp. The row is tried again
   from time to time until its grace is over, and later rows of its key wait with it. If many rows wait, only a few are
   tried: each try of a refused row costs a recovery.
3. **Poison**: the row failed alone. It is dead, but not settled as dead yet.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice

from thresher.delivery.fate import Dead
from thresher.delivery.waiting.grace import Grace, waited

# A row's id and create time.
RowKey = tuple[int, int]
# Each try of a refused timestamp costs a recovery. So a row is tried this often within its grace, with a minimum pause,
# and among all such rows there is a pause between two tries.
_TRIES = 5
_MIN_RETRY_SECONDS, _BETWEEN_SECONDS = 2.0, 3.0
# The most rows of a shard whose waits outlast an attempt.
MOST_KEPT = 5_000
# How often rows are looked through for those that were not read for long.
_FORGETTING_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """One row of the group is poison."""

    group: set[RowKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """The row cannot be sent yet. `retry_at`: when a refused row is tried again; 0 if its partition is missing."""

    topic: str
    why: str
    waited: Grace
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PoisonRow:
    """The row can never be sent."""

    fate: Dead


RowState = Suspect | WaitingRow | PoisonRow


class RowStates:
    """The states, by row. For one thread; the time is passed in."""

    def __init__(self, grace_seconds: float = 60.0, waited_before: Callable[[int], float] = lambda _: 0.0) -> None:
        """`waited_before` returns how long the row with this id has waited under other processes."""
        self._grace_seconds, self._waited_before = grace_seconds, waited_before
        self._states: dict[RowKey, RowState] = {}
        # How many rows of each topic wait.
        self._waiting: Counter[str] = Counter()
        # Waits of earlier attempts, of rows that were not read yet.
        self._earlier: dict[RowKey, Grace] = {}
        self._next_forgetting = 0.0
        # When the next try of any refused row is due.
        self._next_try = 0.0

    def __bool__(self) -> bool:
        return bool(self._states)

    def waiting(self, key: RowKey) -> WaitingRow | None:
        """Return the state of a waiting row; None for any other."""
        state = self._states.get(key)
        return state if isinstance(state, WaitingRow) else None

    def dead_fate(self, key: RowKey) -> Dead | None:
        """Return the fate of a poison row; None for any other."""
        state = self._states.get(key)
        return state.fate if isinstance(state, PoisonRow) else None

    def waits_for(self, topic: str) -> bool:
        """Whether a row of the topic waits."""
        return self._waiting[topic] > 0

    def waiting_for(self, topic: str) -> int:
        """How many rows of the topic wait."""
        return self._waiting[topic]

    @property
    def ids(self) -> tuple[int, int] | None:
        """The first and the last id of the rows that could not be sent."""
        return (min(self._states)[0], max(self._states)[0]) if self._states else None

    @property
    def waiting_rows(self) -> int:
        """How many rows wait."""
        return self._waiting.total()

    def go_on(self, waits: Mapping[RowKey, float], now: float) -> None:
        """Go on with the waits of earlier attempts: for how many seconds each row has waited."""
        self._earlier = {key: Grace(now - seconds, now) for key, seconds in waits.items()}

    def waits(self, now: float) -> dict[RowKey, float]:
        """Return for how many seconds each row has waited, now or earlier: of so many rows as are kept, the first."""
        forgotten = [key for key, grace in self._earlier.items() if grace.forgotten(now, self._grace_seconds)]
        for key in forgotten:
            del self._earlier[key]
        waiting = ((key, state.waited) for key, state in self._states.items() if isinstance(state, WaitingRow))
        graces = islice(chain(self._earlier.items(), waiting), MOST_KEPT)
        return {key: now - grace.since for key, grace in graces}

    def suspect(self, keys: Iterable[RowKey]) -> None:
        """Make these rows, which were in one rejected transaction, a group of suspects."""
        group = set(keys)
        outdated = {id(state.group) for key in group if isinstance(state := self._states.get(key), Suspect)}
        self._states = {
            key: state
            for key, state in self._states.items()
            if not (isinstance(state, Suspect) and id(state.group) in outdated)
        }
        for key in group:
            self._put(key, Suspect(group))

    def wait(self, key: RowKey, topic: str, why: str, now: float, *, tried: bool = False) -> bool:
        """Make a row wait; return False if its grace is over. `tried`: the broker has refused it, so try it later."""
        before = self.waiting(key)
        retry_at = 0.0
        if tried:
            self._next_try = max(now, self._next_try) + _BETWEEN_SECONDS
            retry_at = max(self._next_try, now + max(_MIN_RETRY_SECONDS, self._grace_seconds / _TRIES))
        grace = self._earlier.pop(key, None) if before is None else before.waited
        state = WaitingRow(
            topic=topic,
            why=why,
            waited=waited(grace or Grace(now - self._waited_before(key[0]), now), now, self._grace_seconds),
            retry_at=retry_at,
        )
        if state.waited.over(self._grace_seconds):
            return False
        self.clear(key)
        self._put(key, state)
        return True

    def _put(self, key: RowKey, state: RowState) -> None:
        self._count(self._states.get(key), -1)
        self._states[key] = state
        self._count(state, 1)

    def _count(self, state: RowState | None, change: int) -> None:
        if isinstance(state, WaitingRow):
            self._waiting[state.topic] += change
            if not self._waiting[state.topic]:
                del self._waiting[state.topic]

    def look(self, key: RowKey, now: float) -> WaitingRow | None:
        """Return the state of a waiting row, and note that the row still waits; None for any other row."""
        state = self.waiting(key)
        if state is not None:
            state = replace(state, waited=waited(state.waited, now, self._grace_seconds))
            # Of the same topic.
            self._states[key] = state
        return state

    def overdue(self, state: WaitingRow) -> bool:
        """Whether a row was refused and its grace is over."""
        return bool(state.retry_at) and state.waited.over(self._grace_seconds)

    def forget_unseen(self, now: float) -> list[str]:
        """Forget waiting rows that were not read for long, perhaps deleted. Return topics that no row waits for now."""
        if now < self._next_forgetting:
            return []
        self._next_forgetting = now + _FORGETTING_SECONDS
        unseen = {
            key: state.topic
            for key, state in self._states.items()
            if isinstance(state, WaitingRow) and state.waited.forgotten(now, self._grace_seconds)
        }
        for key in unseen:
            self.clear(key)
        return sorted(topic for topic in set(unseen.values()) if not self.waits_for(topic))

    def mark_dead(self, key: RowKey, fate: Dead) -> None:
        """Note that a row can never be sent."""
        self.clear(key)
        self._put(key, PoisonRow(fate))

    def clear(self, key: RowKey) -> None:
        """Forget a row that was delivered, or is settled as dead."""
        self._earlier.pop(key, None)
        state = self._states.pop(key, None)
        self._count(state, -1)
        if isinstance(state, Suspect):
            state.group.discard(key)

    def fitting(self, keys: Iterable[RowKey]) -> int:
        """Return how many of these rows, from the first, one transaction may have."""
        first: set[RowKey] | None = None
        count = 0
        for count, key in enumerate(keys):
            state = self._states.get(key)
            if isinstance(state, WaitingRow):
                # A refused row is tried alone, so that no other becomes suspect if it is refused again.
                return max(count, 1)
            group = state.group if isinstance(state, Suspect) else None
            if count == 0:
                first = group
            elif group is not first or (group is not None and 2 * count >= len(group)):
                return count
        return count + 1
