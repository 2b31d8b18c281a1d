"""Topics whose rows wait, or are tried alone, because rows of them or of many other topics were refused (`pacing`)."""

from collections.abc import Collection, Generator
from itertools import compress
from operator import not_
from typing import Any

from thresher.delivery.effects import Effect, Lift, Survey, Unhold
from thresher.delivery.fate import Dead
from thresher.delivery.row import Record, Row, RowList, Rows
from thresher.delivery.waiting.grace import Grace
from thresher.delivery.waiting.pacing import WHY, Pacing
from thresher.delivery.waiting.topic_states import TopicState


class PacedTopics:
    """The paced topics of one attempt, as `pacing` decides. For one thread."""

    def __init__(self, pacing: Pacing, *, merging: bool) -> None:
        """`merging`: whether transforms may merge topics and keys."""
        self.pacing, self._merging = pacing, merging

    def waiting(self, available: Collection[str], now: float) -> Generator[Effect, Any, dict[str, TopicState]]:
        """Return those of the available topics that wait, with their state. A missing topic has no turn."""
        for topic in self.pacing.ended(now):
            yield Lift(topic)
        state = TopicState(kind=None, why=WHY, waited=Grace(now, now))
        return dict.fromkeys(self.pacing.waiting(available, now), state)

    def set_apart(self, rows: Rows) -> Rows:
        """Return the rows with those of topics that are tried alone after all others, each topic's rows together.

        A dead row that blocks its key comes after earlier rows of that key: they would be blocked too.
        """
        if not any(map(self.pacing.alone, rows.topics)):
            return rows
        found = list(rows)
        # Without transforms, rows have the topic that they are stored with, and each key's rows stay in order by that.
        alone = {self._kept_by(row) for row in found if self.pacing.alone(row.sent_topic)}
        tried = [isinstance(row.plan, Record) and self._kept_by(row) in alone for row in found]
        streams = {row.stream for row in compress(found, tried)}
        tried = [one or (_blocks(row) and row.stream in streams) for row, one in zip(found, tried, strict=True)]

        def place(row: Row) -> tuple[bool, bool, str]:
            """Return what decides the order of topics: suspects come last. Rows behind a blocking row are not here."""
            topic = self._kept_by(row)
            return _blocks(row), self.pacing.suspect(topic), topic

        behind = sorted(compress(found, tried), key=place)
        return RowList([*compress(found, map(not_, tried)), *behind])

    def tend(self) -> Generator[Effect, Any, None]:
        """Read the rows again of topics that go on."""
        now = (yield Survey(frozenset())).now
        for topic in self.pacing.ended(now):
            yield Lift(topic)
        if free := self.pacing.go_on(now):
            yield Unhold(frozenset(free))
            for topic in free:
                if not self.pacing.suspect(topic):
                    yield Lift(topic)

    def _kept_by(self, row: Row) -> str:
        """Return the topic by which rows are kept in order: the stored one, unless transforms merge topics."""
        return row.sent_topic if self._merging else row.topic


def _blocks(row: Row) -> bool:
    """Whether a row is dead and blocks its key."""
    return isinstance(row.plan, Dead) and row.plan.blocking
