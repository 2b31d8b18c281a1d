"""Why a row was not sent: one state for each row that is suspected, waits or is condemned.

1. **Suspect**: one of a group that went in a rejected transaction, which named nobody. A transaction carries rows of
   one group alone, and half of the group at most. If it is rejected too, these rows are the new group, and nothing is
   known of the others any more. So each rejection halves a group, whichever is read first.
2. **Waiting**: its partition is not there, or the broker refuses its own timestamp. It is tried again from time to
   time, and its key waits with it, until the grace is over. Of many, few are tried: others must go on.
3. **Condemned**: it was found out to be poison, and is not settled as dead yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from thresher.delivery.fate import Dead
from thresher.delivery.waiting.grace import Grace, waited

# A row's id and create time.
RowKey = tuple[int, int]
# A timestamp that was refused costs a recovery each time that it is tried: this many times within the grace, and one of
# all such rows in so many seconds.
_TRIES = 5
_LEAST_RETRY_SECONDS, _BETWEEN_SECONDS = 2.0, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """One row of the group is poison."""

    group: set[RowKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """It cannot be sent yet. `retry_at`: only a try will tell, and the next one is due then."""

    topic: str
    why: str
    waited: Grace
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Condemned:
    """It can never be sent."""

    fate: Dead


RowState = Suspect | WaitingRow | Condemned


class RowStates:
    """The states. For one thread; the time is passed in."""

    def __init__(self, grace_seconds: float = 60.0) -> None:
        self._grace_seconds = grace_seconds
        self._states: dict[RowKey, RowState] = {}
        # When another row may be tried that was refused before.
        self._next_try = 0.0

    def __bool__(self) -> bool:
        return bool(self._states)

    def waiting(self, key: RowKey) -> WaitingRow | None:
        """Return the state of a row that waits."""
        state = self._states.get(key)
        return state if isinstance(state, WaitingRow) else None

    def sentence(self, key: RowKey) -> Dead | None:
        """Return the fate of a row that is condemned."""
        state = self._states.get(key)
        return state.fate if isinstance(state, Condemned) else None

    def waits_for(self, topic: str) -> bool:
        """Whether a row of the topic waits."""
        return any(isinstance(state, WaitingRow) and state.topic == topic for state in self._states.values())

    @property
    def waiting_rows(self) -> int:
        """How many rows wait."""
        return sum(isinstance(state, WaitingRow) for state in self._states.values())

    def accuse(self, keys: Iterable[RowKey]) -> None:
        """Take in that one of these rows, which went together, is poison."""
        group = set(keys)
        outdated = {id(state.group) for key in group if isinstance(state := self._states.get(key), Suspect)}
        self._states = {
            key: state
            for key, state in self._states.items()
            if not (isinstance(state, Suspect) and id(state.group) in outdated)
        }
        self._states.update(dict.fromkeys(group, Suspect(group)))

    def wait(self, key: RowKey, topic: str, why: str, now: float, *, tried: bool = False) -> bool:
        """Take in that a row cannot be sent yet; return False when its grace is over. `tried`: not at once again."""
        before = self.waiting(key)
        retry_at = 0.0
        if tried:
            self._next_try = max(now, self._next_try) + _BETWEEN_SECONDS
            retry_at = max(self._next_try, now + max(_LEAST_RETRY_SECONDS, self._grace_seconds / _TRIES))
        state = WaitingRow(
            topic=topic,
            why=why,
            waited=waited(before.waited if before is not None else None, now, self._grace_seconds),
            retry_at=retry_at,
        )
        if state.waited.over(self._grace_seconds):
            return False
        self.clear(key)
        self._states[key] = state
        return True

    def look(self, key: RowKey, now: float) -> WaitingRow | None:
        """Return the state of a row that waits, and note that the row is still there."""
        state = self.waiting(key)
        if state is not None:
            state = replace(state, waited=waited(state.waited, now, self._grace_seconds))
            self._states[key] = state
        return state

    def overdue(self, state: WaitingRow) -> bool:
        """Whether the grace of a row that was refused is over."""
        return bool(state.retry_at) and state.waited.over(self._grace_seconds)

    def forget_unseen(self, now: float) -> list[str]:
        """Forget rows that wait and were not seen for long, perhaps deleted; return topics of which none waits now."""
        unseen = {
            key: state.topic
            for key, state in self._states.items()
            if isinstance(state, WaitingRow) and state.waited.forgotten(now, self._grace_seconds)
        }
        for key in unseen:
            self.clear(key)
        return sorted(topic for topic in set(unseen.values()) if not self.waits_for(topic))

    def condemn(self, key: RowKey, fate: Dead) -> None:
        """Take in that a row can never be sent."""
        self.clear(key)
        self._states[key] = Condemned(fate)

    def clear(self, key: RowKey) -> None:
        """Take in that a row was delivered, or settled as dead."""
        state = self._states.pop(key, None)
        if isinstance(state, Suspect):
            state.group.discard(key)

    def fitting(self, keys: Iterable[RowKey]) -> int:
        """Return how many of these rows may go together, from the first on."""
        first: set[RowKey] | None = None
        count = 0
        for count, key in enumerate(keys):
            state = self._states.get(key)
            if isinstance(state, WaitingRow):
                # A row that is tried again goes alone: if it is rejected, no other is suspected.
                return max(count, 1)
            group = state.group if isinstance(state, Suspect) else None
            if count == 0:
                first = group
            elif group is not first or (group is not None and 2 * count >= len(group)):
                return count
        return count + 1
