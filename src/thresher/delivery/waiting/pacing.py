"""Bounds what refused rows cost the other rows of a shard: each refusal stops all of them for a recovery.

1. Recoveries after refusals share one **budget** for all topics of a shard: a tenth of the time, and 15 s in advance.
2. A topic that refused a row is **suspect** as a whole. Its rows go into transactions without rows of other topics,
   after the other rows of the batch.
3. After a refusal, rows of suspects are left out of reads for as long as the recovery took: the older ones would hide
   rows of other topics. While the budget is overdrawn, they are left out, too. For a minute after that suspects take
   turns, and a few rows are tried at a time. Good rows of suspects wait with the others.
4. For a minute after a refusal, if there are several suspects or the budget is overdrawn, topics that have taken no
   record in this attempt are tried alone, too: any of them may be the next to refuse. Such a topic goes on with the
   others as soon as it has taken a record.
5. A suspect that was tried and refused nothing for a minute, or longer if suspects are many, goes on with the others.
"""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass

# The part of the time that recoveries after refusals may take, and how many seconds of them may be had in advance.
_SHARE, _ADVANCE_SECONDS = 0.1, 15.0
# The longest pause between two tries, after a recovery that itself took long.
_LONGEST_PAUSE_SECONDS = 60.0
_MINUTE_SECONDS = 60.0
# The time that a topic has for its turn. Rows that are refused end it sooner.
_TURN_SECONDS = 1.0
# Topics that may turn out to be good have their turns before suspects, until so many of them have refused a row.
_MOST_STRANGERS = 3
# The rows of a suspect topic in a transaction.
MOST_ROWS = 64
# The most suspects, topics whose rows are left out of reads, and topics known to take records.
MOST_TOPICS, _MOST_PROVEN = 1_000, 10_000
WHY = (
    "rows of it, or of many other topics, were refused: its rows are tried a few at a time, with pauses, because each "
    "refusal stops all rows"
)


@dataclass(slots=True)
class _Suspect:
    # When it refused a row last, and when its last turn began.
    refused: float
    tried: float = 0.0
    # Fewer if its refusals do not tell the bad rows from the good ones.
    rows: int = MOST_ROWS


class Pacing:
    """The budget, the suspects and the turns of one attempt. For one thread; the time is passed in."""

    def __init__(self, advance_seconds: float = _ADVANCE_SECONDS) -> None:
        self._advance = advance_seconds
        # The seconds of recoveries that may be had by `_at`; the next try is due once they are not negative.
        self._left, self._at, self._due = advance_seconds, 0.0, 0.0
        # Until when topics without a record are tried alone, and until when topics take turns; 0: they do not.
        self._wary_until = self._poor_until = 0.0
        # What the last recovery took.
        self._took = 0.0
        self._suspects: dict[str, _Suspect] = {}
        # Suspects that were forgotten because there are too many.
        self._dropped: list[str] = []
        self._proven: dict[str, None] = {}
        # Topics that wait for a turn, the next one first: each is left out of reads until `go_on` returns it.
        self._held: dict[str, None] = {}
        self._turn, self._turn_began = "", 0.0
        # How many topics became suspect since a suspect had a turn.
        self._strangers = 0

    def __bool__(self) -> bool:
        """Whether any topic is paced."""
        return bool(self._suspects or self._held or self._wary_until or self._poor_until)

    def refused(self, topics: Collection[str], took: float, now: float, *, rows: int = 0) -> None:
        """Note that rows of these topics were refused, and what the recovery took.

        `rows`: how many rows the transaction had, if the refusal does not tell which of them are bad.
        """
        self._left = min(self._advance, self._left + (now - self._at) * _SHARE) - took
        self._left = max(self._left, -_LONGEST_PAUSE_SECONDS * _SHARE)
        self._at, self._took = now, took
        if self._proven.keys() - self._suspects.keys() - set(topics):
            self._due = now + took
        if self._left < 0:
            self._due = max(self._due, now - self._left / _SHARE)
            self._poor_until = self._due + _MINUTE_SECONDS
        for topic in topics:
            known = self._suspects.pop(topic, None)
            if known is None:
                known = _Suspect(now)
                self._strangers += 1
            known.refused, known.tried = now, now
            if rows and self._poor_until:
                known.rows = max(1, rows // 2)
            self._suspects[topic] = known
            self._proven.pop(topic, None)
            if len(self._suspects) > MOST_TOPICS:
                dropped = next(iter(self._suspects))
                del self._suspects[dropped]
                self._dropped.append(dropped)
        if self._left < 0 or len(self._suspects) > 1:
            self._wary_until = now + _MINUTE_SECONDS
        self._turn = ""

    def took(self, topics: Iterable[str]) -> list[str]:
        """Note that these topics took records; return those that were tried alone, and are not any more."""
        self._proven.update(dict.fromkeys(topics))
        while len(self._proven) > _MOST_PROVEN:
            del self._proven[next(iter(self._proven))]
        turn = self._turn
        if not turn or turn not in topics:
            return []
        known = self._suspects.get(turn)
        if known is None:
            self._turn = ""
            return [turn]
        known.rows = min(MOST_ROWS, known.rows + max(1, known.rows // 8))
        return []

    def alone(self, topic: str) -> bool:
        """Whether the rows of a topic go without those of others."""
        return topic in self._suspects or (bool(self._wary_until) and topic not in self._proven)

    def suspect(self, topic: str) -> bool:
        """Whether a topic has refused a row lately."""
        return topic in self._suspects

    def most_rows(self, topic: str) -> int:
        """How many rows of a topic that is tried alone go into a transaction."""
        if not self._poor_until:
            return sys.maxsize
        known = self._suspects.get(topic)
        return MOST_ROWS if known is None else known.rows

    def waiting(self, topics: Collection[str], now: float) -> list[str]:
        """Return those of the topics whose rows wait now: of all that are tried alone, those whose turn it is not."""
        self._calm(now)
        if now >= self._due and not self._poor_until:
            return []
        paced = [topic for topic in topics if self.alone(topic)]
        if not paced or now < self._due:
            return paced
        if now - self._turn_began >= _TURN_SECONDS or not self._turn:
            self._give_turn(paced, now)
        return [topic for topic in paced if topic != self._turn]

    def hold(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that are to be left out of reads until `go_on` returns them."""
        lasting = []
        for topic in topics:
            if topic in self._held or len(self._held) < MOST_TOPICS:
                self._held[topic] = None
                lasting.append(topic)
        return lasting

    def go_on(self, now: float) -> list[str]:
        """Return topics whose rows are to be read again: the next one's, and those of topics that are paced no more."""
        self._calm(now)
        free = [topic for topic in self._held if not self.alone(topic) or not (self._poor_until or now < self._due)]
        if (
            self._poor_until
            and self._held
            and now >= self._due
            and (now - self._turn_began >= _TURN_SECONDS or not self._turn)
        ):
            self._give_turn(self._held, now)
            free.append(self._turn)
        for topic in free:
            self._held.pop(topic, None)
        return free

    def ended(self, now: float) -> list[str]:
        """Forget suspects that refused nothing for long; return them, and those that were forgotten since."""
        enough = max(_MINUTE_SECONDS, len(self._suspects) * self._took / _SHARE)
        over = [
            topic
            for topic, known in self._suspects.items()
            if now - known.refused > enough and (known.tried > known.refused or topic not in self._held)
        ]
        for topic in over:
            del self._suspects[topic]
        dropped, self._dropped = self._dropped, []
        return over + dropped

    def _calm(self, now: float) -> None:
        if now >= self._wary_until and now >= self._due:
            self._wary_until = 0.0
        if now >= self._poor_until:
            self._poor_until = 0.0

    def _give_turn(self, topics: Iterable[str], now: float) -> None:
        """Give the turn to one of these topics: to suspects in turn, after those that may turn out to be good."""
        suspects_first = self._strangers >= _MOST_STRANGERS
        places = {topic: place for place, topic in enumerate(self._held)}

        def order(topic: str) -> tuple[bool, float, int]:
            known = self._suspects.get(topic)
            tried = 0.0 if known is None else known.tried
            return (known is None) == suspects_first, tried, places.get(topic, len(places))

        self._turn, self._turn_began = min(topics, key=order), now
        known = self._suspects.get(self._turn)
        if known is not None:
            known.tried, self._strangers = now, 0
