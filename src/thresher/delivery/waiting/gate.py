"""Passes the rows of a batch that can be sent now, and holds the others. Rows whose grace is over become dead.

1. Rows of a missing topic wait: their stored topic is left out of reads, and the cluster is asked about it from time
   to time (`held_topics`). So a row that waits is read once when it comes, and once when its wait is over.
2. A row that names a missing partition, has a timestamp that its topic does not take, or whose next try is not due
   yet, waits with all rows of its key. If a topic has many such rows, the topic waits, and no other. A row without a
   key for a compacted topic is dead without a try.
3. If a transform may merge topics and keys, rows wait one by one instead, each with the rows that must be sent after it
   (`withheld`). Once the first of them can be sent, all are read again by id before any is sent.
4. What waits, and since when, is kept durably (`KeepWaits`), a second late or so: a later attempt goes on with it.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from thresher.db.waits import Waits
from thresher.delivery.effects import (
    CheckTransactionEnded,
    CloseAhead,
    Effect,
    Hold,
    KeepWaits,
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
from thresher.delivery.waiting.flaw import Flaw, flaw_of, lacks_keys
from thresher.delivery.waiting.held_topics import HeldTopics
from thresher.delivery.waiting.paced_topics import PacedTopics
from thresher.delivery.waiting.pacing import WHY, Pacing
from thresher.delivery.waiting.row_states import RowStates
from thresher.delivery.waiting.topic_states import TopicState, TopicStates
from thresher.delivery.waiting.withheld import LeftOut, Withheld
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus

# If more rows of a topic wait, reads leave out the topic instead of single rows and keys; and so with all topics if
# more rows of all wait.
_MAX_TOPIC_ROWS, _MAX_HELD_ROWS = 500, 1_000
# Rows of the same topic and key as a waiting row wait with it for this long, before it is looked at again.
_AGAIN_SECONDS = 2.0
# The most rows of one batch, of topics whose grace is over, that are set aside at once. More are left to sweeps.
_MOST_DEAD = 500
# With topic locks, recoveries because of refused rows that a turn may have: what it finds out is lost with it.
_LONGEST_SEARCH_SECONDS = 20.0
# How often it is looked at what waits, to keep it: after a pause, and after so many seconds for each thing that waits.
# What has not changed is kept anew before it is too old to count.
_KEEP_SECONDS, _KEEP_EACH_SECONDS, _KEEP_ANEW_SECONDS = 1.0, 0.001, 20.0


class Gate:
    """The waiting topics and rows of one attempt. For one thread; the time comes with each survey of topics."""

    def __init__(self, rules: Rules, ownership: Ownership) -> None:
        self._rules, self._ownership = rules, ownership
        self.topics = TopicStates(rules.topic_grace_seconds, rules.most_graces)
        self.held = HeldTopics(self.topics)
        self.rows = RowStates(rules.grace_seconds, rules.row_waited)
        self.withheld = Withheld()
        pacing = Pacing() if rules.sweeps else Pacing(_LONGEST_SEARCH_SECONDS)
        self._paced = PacedTopics(pacing, merging=rules.merging)
        # When the topics were surveyed last: the next transaction begins then.
        self.asked = 0.0
        # Stored topics and keys whose further rows in this batch stay in the table.
        self._held_topics: set[str] = set()
        self._held_streams: set[Any] = set()
        # Topics that now have the partition that rows waited for.
        self._came: set[str] = set()
        # The number of partitions of each available topic, by the last survey.
        self._counts: dict[str, int] = {}
        # What is kept for later attempts, when that was written, and when to look next.
        self._kept = Waits()
        self._kept_at = self._next_keeping = 0.0

    @property
    def pacing(self) -> Pacing:
        """What bounds the cost of refused rows."""
        return self._paced.pacing

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
        self.held.available(self._counts)
        found = self.topics.surveyed(answer.topics, answer.now)
        for topic in (*found.lifted, *self.rows.forget_unseen(answer.now)):
            yield Lift(topic)
        lost = found.topics
        if len(answer.topics) < len(topics):
            lost = {**lost, **self.topics.unknown(topics - answer.topics.keys(), answer.now)}
        if found.due:
            lost = {**lost, **(yield from self._put_off(found.due))}
        self.asked = answer.now
        if self.pacing:
            lost = {**(yield from self._paced.waiting(self._counts, answer.now)), **lost}
        if self._rules.merging:
            rows = yield from self._one_by_one(rows, lost, answer, behind)
        else:
            if lost:
                rows = yield from self._miss(rows, lost, answer.topics)
            rows = yield from self._placed(rows, answer)
        for topic in sorted(self._came):
            if not self.rows.waits_for(topic):
                yield Lift(topic)
        self._came.clear()
        return self._paced.set_apart(rows) if self.pacing else rows

    def go_on(self, earlier: Waits | None) -> Generator[Effect, Any, None]:
        """Go on with what waited in earlier attempts: no grace begins anew."""
        if earlier is not None and (earlier.topics or earlier.rows):
            now = (yield Survey(frozenset())).now
            self._kept, self._kept_at = earlier, now
            self.topics.go_on(earlier.topics, now)
            self.rows.go_on(earlier.rows, now)

    def tend(self) -> Generator[Effect, Any, None]:
        """Ask about topics that are held, and keep what waits for later attempts."""
        if self.topics:
            yield from self.held.tend()
        if self.pacing:
            yield from self._paced.tend()
        if self.topics or self.rows or self._kept.topics or self._kept.rows:
            yield from self._keep()

    def _keep(self) -> Generator[Effect, Any, None]:
        now = (yield Survey(frozenset())).now
        if now < self._next_keeping:
            return
        waits = Waits(topics=self.topics.waits(now), rows=self.rows.waits(now))
        size = len(waits.topics) + len(waits.rows)
        self._next_keeping = now + max(_KEEP_SECONDS, size * _KEEP_EACH_SECONDS)
        changed = waits.topics.keys() != self._kept.topics.keys() or waits.rows.keys() != self._kept.rows.keys()
        if changed or (size and now - self._kept_at > _KEEP_ANEW_SECONDS):
            yield KeepWaits(waits)
            self._kept, self._kept_at = waits, now

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

    def _miss(
        self, rows: Rows, lost: Mapping[str, TopicState], statuses: Mapping[str, TopicStatus]
    ) -> Generator[Effect, Any, Rows]:
        """Hold the rows of topics that cannot be written to; if the grace is over, make them dead, if they are few."""
        kept: list[Row] = []
        # Stored topics, and why their rows wait.
        newly: dict[str, str] = {}
        expired = {topic for topic, state in lost.items() if self.topics.expired(state)}
        room = _MOST_DEAD if self._rules.sweeps else len(rows)
        for row in rows:
            plan = row.plan
            if not isinstance(plan, Record) or plan.topic not in lost:
                kept.append(row)
            elif plan.topic in expired and (room > 0 or lost[plan.topic].tries):
                room -= 1
                kept.append(self._lost(row, lost[plan.topic]))
            else:
                newly.setdefault(row.topic, lost[plan.topic].why)
        if newly:
            self._held_topics |= newly.keys()
            # A topic that refused records, although the cluster calls it available, has to be tried again.
            away = {topic for topic in newly if topic in lost and not isinstance(statuses.get(topic), Available)}
            lasting = away if self._rules.sweeps else set()
            self.held.hold(lasting)
            if self._rules.sweeps and self.pacing:
                paced = [topic for topic in newly.keys() - away if topic in lost and lost[topic].why is WHY]
                lasting.update(self.pacing.hold(paced))
            missing = {**newly, **{topic: state.why for topic, state in lost.items() if topic not in expired}}
            yield Hold(frozenset(newly), next(iter(newly.values())), missing, lasting=frozenset(lasting))
        return RowList([row for row in RowList(kept).blocked_left_out() if row.topic not in self._held_topics])

    def _placed(self, rows: Rows, surveyed: Surveyed) -> Generator[Effect, Any, Rows]:
        """Hold rows that name a missing partition, or whose next try is not due yet; or make them dead."""
        special = rows.asks_for_partitions or rows.has_timestamps or lacks_keys(rows, surveyed)
        if not (special or self.rows or self._held_streams):
            return rows
        # `changed`: whether a row may have got another plan.
        changed, surveyed = yield from self._partitions(rows, surveyed)
        placed: list[Row] = []
        waiting: list[tuple[Row, str]] = []
        for row in rows:
            if row.stream in self._held_streams:
                continue
            flaw = flaw_of(row.plan, surveyed)
            why = self._flawed(row, flaw) if flaw is not None and flaw.at_once else self._waits(row, flaw, surveyed.now)
            if isinstance(why, Row):
                placed.append(why)
                changed = True
            elif why is not None:
                waiting.append((row, why))
                if row.stream is not None:
                    self._held_streams.add(row.stream)
            else:
                placed.append(row if flaw is None else self._flawed(row, flaw))
                changed = changed or flaw is not None
        if waiting:
            yield self._hold_of(waiting)
            placed = [row for row in placed if row.topic not in self._held_topics]
        if not changed and len(placed) == len(rows):
            return rows
        return RowList(placed).blocked_left_out()

    def _one_by_one(
        self, rows: Rows, lost: Mapping[str, TopicState], surveyed: Surveyed, behind: Callable[[], Iterable[Row]]
    ) -> Generator[Effect, Any, Rows]:
        """Hold, one by one, rows that cannot be sent now and rows that must be sent after them; or make them dead."""
        special = rows.asks_for_partitions or rows.has_timestamps or lacks_keys(rows, surveyed)
        plain = not (special or self.rows or self.withheld)
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
                away = row.sent_topic in lost
                waiting.append(LeftOut(row, verdict, surveyed.now if away else until, row.sent_topic if away else None))
                stopped.setdefault(row.sent_stream or row.id, verdict)
        if self.withheld.overtaken_by(kept) or self.withheld.waits_for(surveyed.topics.keys() - lost.keys()):
            self.withheld.release()
            yield Release()
            return RowList()
        self.withheld.readmit(kept)
        if waiting:
            gone = {topic: state.why for topic, state in lost.items() if not self.topics.expired(state)}
            for row in behind():
                topic = row.sent_topic if row.sent_topic in gone else None
                why = gone.get(row.sent_topic) or stopped.get(row.sent_stream)
                if why is not None:
                    waiting.append(LeftOut(row, why, surveyed.now, topic))
            yield self._hold_singly(waiting, alone=not kept)
        return RowList(kept).blocked_left_out()

    def _verdict(
        self, row: Row, lost: Mapping[str, TopicState], surveyed: Surveyed, stopped: Mapping[Any, str]
    ) -> Row | str:
        """Return the row if it can be sent or settled now; otherwise the reason why it waits."""
        state = lost.get(row.sent_topic)
        if state is not None:
            return self._lost(row, state) if self.topics.expired(state) else state.why
        stream = row.sent_stream
        joins = stopped.get(stream) or self.withheld.why(stream, surveyed.now)
        if joins is not None:
            return joins
        flaw = flaw_of(row.plan, surveyed)
        if flaw is not None and flaw.at_once:
            return self._flawed(row, flaw)
        verdict = self._waits(row, flaw, surveyed.now)
        if verdict is not None:
            return verdict
        return row if flaw is None else self._flawed(row, flaw)

    def _hold_singly(self, waiting: Sequence[LeftOut], *, alone: bool) -> Hold:
        """Hold these rows, up to the limit of `withheld`. `alone`: there is nothing else to send."""
        first, behind = self.withheld.leave_out(waiting)
        crowded = len(first) + len(behind) < len(waiting)
        more = "; too many rows wait one by one, so the whole shard waits with them" if crowded else ""
        return Hold(
            frozenset(),
            waiting[0].why + more,
            missing=_reasons((each.row.sent_topic, each.why + more) for each in waiting),
            rows=first,
            behind=behind,
            resting=crowded and alone,
        )

    def _hold_of(self, waiting: Sequence[tuple[Row, str]]) -> Hold:
        """Hold waiting rows with their keys; if a topic has many, the topic."""
        all_many = self.rows.waiting_rows > _MAX_HELD_ROWS
        many = {row.topic for row, _ in waiting if all_many or self.rows.waiting_for(row.sent_topic) > _MAX_TOPIC_ROWS}
        self._held_topics |= many
        single = [row for row, _ in waiting if row.topic not in many]
        return Hold(
            frozenset(many),
            waiting[0][1],
            missing=_reasons((row.plan.topic, why) for row, why in waiting if isinstance(row.plan, Record)),
            streams=frozenset(row.stream for row in single if row.stream is not None),
            rows={row.id: row.create_time for row in single if row.stream is None},
        )

    def _partitions(self, rows: Rows, surveyed: Surveyed) -> Generator[Effect, Any, tuple[bool, Surveyed]]:
        """Return the status of the topics, asked for again if one would not take a row; and whether it was."""
        doubtful = {row.sent_topic for row in rows if flaw_of(row.plan, surveyed) is not None}
        if not doubtful:
            return False, surveyed
        # Partitions may have been added since the last survey, or limits changed.
        return True, (yield Survey(frozenset(doubtful), fresh=True))

    def _waits(self, row: Row, flaw: Flaw | None, now: float) -> Row | str | None:
        """Return the reason if a row waits, for its topic or its next try; the dead row if its grace is over.

        `flaw`: why its topic would not take it now. None: the row does not wait.
        """
        key = (row.id, row.create_time)
        if flaw is not None:
            return flaw.why if self.rows.wait(key, row.sent_topic, flaw.why, now) else None
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
        if state.crowded:
            most = self._rules.most_graces
            reason = f"{state.why}; it was not waited for, because {most:,} other topics waited already"
        return self._dead_row(row, state.kind or Kind.REJECTED, reason, max(1, state.tries))

    def _flawed(self, row: Row, flaw: Flaw) -> Row:
        """Return a row as dead, because its topic takes no such row, or would not have taken it for the whole grace."""
        return self._dead_row(row, flaw.kind, flaw.why if flaw.at_once else self._rules.grace_over_reason(flaw.why))

    def _dead_row(self, row: Row, kind: Kind, reason: str, attempts: int = 1) -> Row:
        return row._replace(plan=self._rules.dead_fate(row, dead(kind, reason, attempts)))


def _reasons(waiting: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each topic with its first row's reason to wait."""
    found: dict[str, str] = {}
    for topic, why in waiting:
        found.setdefault(topic, why)
    return found
