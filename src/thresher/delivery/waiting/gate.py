"""Passes the rows of a batch that can be sent now, and holds the others. Rows whose grace is over become dead.

1. Rows of a missing topic wait: their stored topic is left out of reads for a while.
2. A row that names a missing partition, or whose next try is not due yet, waits with all rows of its key. If there are
   many such rows, their stored topics wait.
3. If a transform may merge topics and keys, rows wait one by one instead, each with the rows that must be sent after it
   (`withheld`). Once the first of them can be sent, all are read again by id before any is sent.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from thresher.delivery.effects import (
    CheckTransactionEnded,
    CloseAhead,
    Effect,
    Hold,
    Lift,
    ReadControl,
    Release,
    Survey,
)
from thresher.delivery.fate import Kind, dead
from thresher.delivery.ownership import Ownership
from thresher.delivery.partition_keys import with_partitions
from thresher.delivery.row import Record, Row, RowList, Rows
from thresher.delivery.rules import Rules
from thresher.delivery.waiting.row_states import RowStates
from thresher.delivery.waiting.topic_states import TopicState, TopicStates
from thresher.delivery.waiting.withheld import LeftOut, Withheld
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus

# If more rows wait, reads leave out their topics instead of single rows and keys.
_MAX_HELD_ROWS = 1_000
# Rows of the same topic and key as a waiting row wait with it for this long, before it is looked at again.
_AGAIN_SECONDS = 2.0


class Gate:
    """The waiting topics and rows of one attempt. For one thread; the time comes with each survey of topics."""

    def __init__(self, rules: Rules, ownership: Ownership) -> None:
        self._rules, self._ownership = rules, ownership
        self.topics = TopicStates(rules.topic_grace_seconds)
        self.rows = RowStates(rules.grace_seconds, rules.row_waited)
        self.withheld = Withheld()
        # Stored topics and keys whose further rows in this batch stay in the table.
        self._held_topics: set[str] = set()
        self._held_streams: set[Any] = set()
        # Topics that now have the partition that rows waited for.
        self._came: set[str] = set()
        # The number of partitions of each available topic, by the last survey.
        self._counts: dict[str, int] = {}

    def begin(self) -> None:
        """Start a new batch."""
        self._held_topics, self._held_streams = set(), set()

    def let_through(self, rows: Rows, behind: Callable[[], Iterable[Row]]) -> Generator[Effect, Any, Rows]:
        """Survey the topics, and return the rows that can be sent or settled now.

        `behind` returns the rows that were read for later batches.
        """
        topics = rows.topics
        if not topics and not self.withheld:
            return rows
        answer: Surveyed = yield Survey(topics)
        self._counts = {
            topic: status.partitions for topic, status in answer.topics.items() if isinstance(status, Available)
        }
        found = self.topics.surveyed(answer.topics, answer.now)
        for topic in (*found.lifted, *self.rows.forget_unseen(answer.now)):
            yield Lift(topic)
        lost = found.topics
        if found.due:
            lost = {**lost, **(yield from self._put_off(found.due))}
        if self._rules.merging:
            rows = yield from self._one_by_one(rows, lost, answer, behind)
        else:
            if lost:
                rows = yield from self._miss(rows, lost)
            rows = yield from self._placed(rows, answer)
        for topic in sorted(self._came):
            if not self.rows.waits_for(topic):
                yield Lift(topic)
        self._came.clear()
        return rows

    def placed(self, rows: Rows) -> Rows:
        """Return rows that were let through, with the partitions of those that have a partition key."""
        return with_partitions(rows, self._counts)

    def _put_off(self, due: Iterable[str]) -> Generator[Effect, Any, Mapping[str, TopicState]]:
        """Return those of the topics due for another try whose try is put off, with their states.

        A try of a topic that does not answer may block another transactional id. So while an id is blocked by an
        earlier try, only the end of that id's transaction shows that the topic takes records again.
        """
        for id_index in sorted(self._ownership.blocked):
            # The question takes time, and fences the id's present producer: the term must be ours.
            yield CloseAhead()
            self._ownership.require_mine((yield ReadControl()))
            if not (yield CheckTransactionEnded(id_index)):
                return self.topics.put_off(due, (yield Survey(frozenset())).now)
            self._ownership.blocked.discard(id_index)
        return {}

    def _miss(self, rows: Rows, lost: Mapping[str, TopicState]) -> Generator[Effect, Any, Rows]:
        """Hold the rows of topics that cannot be written to; if the grace is over, make them dead."""
        kept: list[Row] = []
        why = ""
        newly: set[str] = set()
        expired = {topic for topic, state in lost.items() if self.topics.expired(state)}
        for row in rows:
            plan = row.plan
            if not isinstance(plan, Record) or plan.topic not in lost:
                kept.append(row)
            elif plan.topic in expired:
                kept.append(self._lost(row, lost[plan.topic]))
            else:
                newly.add(row.topic)
                why = lost[plan.topic].why
        if newly:
            self._held_topics |= newly
            yield Hold(frozenset(newly), why, frozenset(lost) - expired)
        return RowList([row for row in RowList(kept).blocked_left_out() if row.topic not in self._held_topics])

    def _placed(self, rows: Rows, surveyed: Surveyed) -> Generator[Effect, Any, Rows]:
        """Hold rows that name a missing partition, or whose next try is not due yet; or make them dead."""
        if not rows.asks_for_partitions and not self.rows and not self._held_streams:
            return rows
        # `changed`: whether a row may have got another plan.
        changed, surveyed = yield from self._partitions(rows, surveyed)
        placed: list[Row] = []
        waiting: list[Row] = []
        reason = ""
        for row in rows:
            if row.stream in self._held_streams:
                continue
            there = _beyond(row.plan, surveyed.topics)
            why = self._waits(row, there, surveyed.now)
            if isinstance(why, Row):
                placed.append(why)
                changed = True
            elif why is not None:
                reason = why
                waiting.append(row)
                if row.stream is not None:
                    self._held_streams.add(row.stream)
            else:
                placed.append(row if there is None else self._misplaced(row, there))
        if waiting:
            yield self._hold_of(waiting, reason)
            placed = [row for row in placed if row.topic not in self._held_topics]
        if not changed and len(placed) == len(rows):
            return rows
        return RowList(placed).blocked_left_out()

    def _one_by_one(
        self, rows: Rows, lost: Mapping[str, TopicState], surveyed: Surveyed, behind: Callable[[], Iterable[Row]]
    ) -> Generator[Effect, Any, Rows]:
        """Hold, one by one, rows that cannot be sent now and rows that must be sent after them; or make them dead."""
        plain = not rows.asks_for_partitions and not self.rows and not self.withheld
        if not lost and plain:
            return rows
        if not plain:
            _, surveyed = yield from self._partitions(rows, surveyed)
        kept: list[Row] = []
        waiting: list[LeftOut] = []
        until = surveyed.now + _AGAIN_SECONDS
        # Why the rows of a sent topic and key wait.
        stopped: dict[Any, str] = {}
        for row in rows:
            verdict = self._verdict(row, lost, surveyed, stopped)
            if isinstance(verdict, Row):
                kept.append(verdict)
            else:
                away = _topic_of(row) in lost
                waiting.append(LeftOut(row, verdict, surveyed.now if away else until, _topic_of(row) if away else None))
                stopped.setdefault(row.sent_stream or row.id, verdict)
        if self.withheld.overtaken_by(kept) or self.withheld.waits_for(surveyed.topics.keys() - lost.keys()):
            self.withheld.release()
            yield Release()
            return RowList()
        self.withheld.readmit(kept)
        if waiting:
            gone = {topic: state.why for topic, state in lost.items() if not self.topics.expired(state)}
            for row in behind():
                topic = _topic_of(row) if _topic_of(row) in gone else None
                why = gone.get(_topic_of(row)) or stopped.get(row.sent_stream)
                if why is not None:
                    waiting.append(LeftOut(row, why, surveyed.now, topic))
            yield self._hold_singly(waiting, alone=not kept)
        return RowList(kept).blocked_left_out()

    def _verdict(
        self, row: Row, lost: Mapping[str, TopicState], surveyed: Surveyed, stopped: Mapping[Any, str]
    ) -> Row | str:
        """Return the row if it can be sent or settled now; otherwise the reason why it waits."""
        state = lost.get(_topic_of(row))
        if state is not None:
            return self._lost(row, state) if self.topics.expired(state) else state.why
        stream = row.sent_stream
        joins = stopped.get(stream) or self.withheld.why(stream, surveyed.now)
        if joins is not None:
            return joins
        there = _beyond(row.plan, surveyed.topics)
        verdict = self._waits(row, there, surveyed.now)
        if verdict is not None:
            return verdict
        return row if there is None else self._misplaced(row, there)

    def _hold_singly(self, waiting: Sequence[LeftOut], *, alone: bool) -> Hold:
        """Hold these rows, up to the limit of `withheld`. `alone`: there is nothing else to send."""
        first, behind = self.withheld.leave_out(waiting)
        crowded = len(first) + len(behind) < len(waiting)
        why = waiting[0].why
        if crowded:
            why = f"{why}; too many rows wait one by one, so the whole shard waits with them"
        return Hold(
            frozenset(),
            why,
            missing=frozenset(_topic_of(each.row) for each in waiting),
            rows=first,
            behind=behind,
            resting=crowded and alone,
        )

    def _hold_of(self, waiting: Sequence[Row], why: str) -> Hold:
        """Hold waiting rows with their keys; if there are many, their stored topics."""
        many = self.rows.waiting_rows > _MAX_HELD_ROWS
        if many:
            self._held_topics |= {row.topic for row in waiting}
        return Hold(
            frozenset(row.topic for row in waiting if many),
            why,
            missing=frozenset(row.plan.topic for row in waiting if isinstance(row.plan, Record)),
            streams=frozenset(row.stream for row in waiting if row.stream is not None and not many),
            rows={row.id: row.create_time for row in waiting if row.stream is None and not many},
        )

    def _partitions(self, rows: Rows, surveyed: Surveyed) -> Generator[Effect, Any, tuple[bool, Surveyed]]:
        """Return the status of the topics, asked for again if a row names a missing partition; and whether it was."""
        doubtful = {_topic_of(row) for row in rows if _beyond(row.plan, surveyed.topics) is not None}
        if not doubtful:
            return False, surveyed
        # Partitions may have been added since the last survey.
        return True, (yield Survey(frozenset(doubtful), fresh=True))

    def _waits(self, row: Row, there: int | None, now: float) -> Row | str | None:
        """Return the reason if a row waits, for its partition or its next try; the dead row if its grace is over.

        `there` is the number of partitions, if the row names one beyond them. None: the row does not wait.
        """
        key = (row.id, row.create_time)
        if there is not None and isinstance(row.plan, Record):
            why = _missing(row.plan, there)
            return why if self.rows.wait(key, row.plan.topic, why, now) else None
        state = self.rows.look(key, now)
        if state is None:
            return None
        if self.rows.overdue(state):
            return self._dead_row(row, Kind.REJECTED, self._rules.grace_over_reason(state.why))
        if not state.retry_at:
            # Its partition is there now. It need not be tried alone, as a row that the broker refused must be.
            self.rows.clear(key)
            self._came.add(state.topic)
        return state.why if now < state.retry_at else None

    def _lost(self, row: Row, state: TopicState) -> Row:
        """Return a row as dead, because its topic could not be written to for the whole grace."""
        reason = self._rules.grace_over_reason(state.why)
        return self._dead_row(row, state.kind or Kind.REJECTED, reason, max(1, state.tries))

    def _misplaced(self, row: Row, there: int) -> Row:
        """Return a row as dead, because its partition was missing for the whole grace."""
        return self._dead_row(row, Kind.NO_PARTITION, self._rules.grace_over_reason(_missing(row.plan, there)))

    def _dead_row(self, row: Row, kind: Kind, reason: str, attempts: int = 1) -> Row:
        return row._replace(plan=self._rules.dead_fate(row, dead(kind, reason, attempts)))


def _topic_of(row: Row) -> str:
    """Return the topic that a row is sent to; empty if it is not sent."""
    return row.plan.topic if isinstance(row.plan, Record) else ""


def _beyond(plan: Any, statuses: Mapping[str, TopicStatus]) -> int | None:
    """Return the topic's number of partitions if the record names one beyond them; otherwise None."""
    status = statuses.get(plan.topic) if isinstance(plan, Record) and plan.partition >= 0 else None
    if not isinstance(status, Available) or plan.partition < status.partitions:
        return None
    return status.partitions


def _missing(plan: Any, there: int) -> str:
    return f"partition {plan.partition} of {plan.topic} does not exist: the topic has {there} partitions"
