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
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

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
    Unhold,
)
from thresher.delivery.fate import Dead, Kind, dead
from thresher.delivery.ownership import Ownership
from thresher.delivery.partition_keys import with_partitions
from thresher.delivery.row import Record, Row, RowList, Rows
from thresher.delivery.rules import Rules
from thresher.delivery.waiting.grace import Grace
from thresher.delivery.waiting.held_topics import HeldTopics
from thresher.delivery.waiting.pacing import WHY, Pacing
from thresher.delivery.waiting.row_states import RowStates
from thresher.delivery.waiting.topic_states import TopicState, TopicStates
from thresher.delivery.waiting.withheld import LeftOut, Withheld
from thresher.kafka.topic_status import Available, Surveyed, TopicStatus

# If more rows of a topic wait, reads leave out the topic instead of single rows and keys; and so with all topics if
# more rows of all wait.
_MAX_TOPIC_ROWS, _MAX_HELD_ROWS = 500, 1_000
# By how much the clocks of a broker and the database may differ: a timestamp this near to a limit is tried.
_CLOCKS_MS = 60_000
# Rows of the same topic and key as a waiting row wait with it for this long, before it is looked at again.
_AGAIN_SECONDS = 2.0
# The most rows of one batch, of topics whose grace is over, that are set aside at once. More are left to sweeps.
_MOST_DEAD = 500
# With topic locks, recoveries because of refused rows that a turn may have: what it finds out is lost with it.
_LONGEST_SEARCH_SECONDS = 20.0
# How often it is looked at what waits, to keep it: after a pause, and after so many seconds for each thing that waits.
# What has not changed is kept anew only now and then.
_KEEP_SECONDS, _KEEP_EACH_SECONDS, _KEEP_ANEW_SECONDS = 1.0, 0.001, 300.0


class Flaw(NamedTuple):
    """Why a topic would not take a row now, and as what the row is set aside once its grace is over."""

    kind: Kind
    why: str
    # There is no grace: the cluster was asked just now, and a try would find the same.
    at_once: bool = False


class Gate:
    """The waiting topics and rows of one attempt. For one thread; the time comes with each survey of topics."""

    def __init__(self, rules: Rules, ownership: Ownership) -> None:
        self._rules, self._ownership = rules, ownership
        self.topics = TopicStates(rules.topic_grace_seconds, rules.most_graces)
        self.held = HeldTopics(self.topics)
        self.rows = RowStates(rules.grace_seconds, rules.row_waited)
        self.withheld = Withheld()
        self.pacing = Pacing() if rules.sweeps else Pacing(_LONGEST_SEARCH_SECONDS)
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
            lost = {**(yield from self._paced(answer)), **lost}
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
        return self._set_apart(rows) if self.pacing else rows

    def _paced(self, surveyed: Surveyed) -> Generator[Effect, Any, dict[str, TopicState]]:
        """Return the topics that wait because rows were refused, with their state. A missing topic has no turn."""
        for topic in self.pacing.ended(surveyed.now):
            yield Lift(topic)
        state = TopicState(kind=None, why=WHY, waited=Grace(surveyed.now, surveyed.now))
        return dict.fromkeys(self.pacing.waiting(self._counts, surveyed.now), state)

    def _set_apart(self, rows: Rows) -> Rows:
        """Return the rows with those of topics that are tried alone after all others, each topic's rows together.

        A dead row that blocks its key comes after earlier rows of that key: they would be blocked too.
        """
        if not any(map(self.pacing.alone, rows.topics)):
            return rows
        found = list(rows)
        # Without transforms, rows have the topic that they are stored with, and each key's rows stay in order by that.
        alone = {_kept_by(row, self._rules) for row in found if self.pacing.alone(_topic_of(row))}
        tried = [isinstance(row.plan, Record) and _kept_by(row, self._rules) in alone for row in found]
        streams = {row.stream for row in compress(found, tried)}
        tried = [one or (_blocks(row) and row.stream in streams) for row, one in zip(found, tried, strict=True)]

        def place(row: Row) -> tuple[bool, bool, str]:
            """Return what decides the order of topics: suspects come last. Rows behind a blocking row are not here."""
            topic = _kept_by(row, self._rules)
            return _blocks(row), self.pacing.suspect(topic), topic

        behind = sorted(compress(found, tried), key=place)
        return RowList([*compress(found, map(not_, tried)), *behind])

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
            now = (yield Survey(frozenset())).now
            for topic in self.pacing.ended(now):
                yield Lift(topic)
            if free := self.pacing.go_on(now):
                yield Unhold(frozenset(free))
                for topic in free:
                    if not self.pacing.suspect(topic):
                        yield Lift(topic)
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
        special = rows.asks_for_partitions or rows.has_timestamps or _lacks_keys(rows, surveyed)
        if not (special or self.rows or self._held_streams):
            return rows
        # `changed`: whether a row may have got another plan.
        changed, surveyed = yield from self._partitions(rows, surveyed)
        placed: list[Row] = []
        waiting: list[tuple[Row, str]] = []
        for row in rows:
            if row.stream in self._held_streams:
                continue
            flaw = _flaw(row.plan, surveyed)
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
        special = rows.asks_for_partitions or rows.has_timestamps or _lacks_keys(rows, surveyed)
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
        flaw = _flaw(row.plan, surveyed)
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
            missing=_reasons((_topic_of(each.row), each.why + more) for each in waiting),
            rows=first,
            behind=behind,
            resting=crowded and alone,
        )

    def _hold_of(self, waiting: Sequence[tuple[Row, str]]) -> Hold:
        """Hold waiting rows with their keys; if a topic has many, the topic."""
        all_many = self.rows.waiting_rows > _MAX_HELD_ROWS
        many = {row.topic for row, _ in waiting if all_many or self.rows.waiting_for(_topic_of(row)) > _MAX_TOPIC_ROWS}
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
        doubtful = {_topic_of(row) for row in rows if _flaw(row.plan, surveyed) is not None}
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
            return flaw.why if self.rows.wait(key, _topic_of(row), flaw.why, now) else None
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


def _kept_by(row: Row, rules: Rules) -> str:
    """Return the topic by which rows are kept in order: the one that they are stored with, unless transforms merge."""
    return _topic_of(row) if rules.merging else row.topic


def _blocks(row: Row) -> bool:
    """Whether a row is dead and blocks its key."""
    return isinstance(row.plan, Dead) and row.plan.blocking


def _topic_of(row: Row) -> str:
    """Return the topic that a row is sent to; empty if it is not sent."""
    return row.plan.topic if isinstance(row.plan, Record) else ""


def _beyond(plan: Any, statuses: Mapping[str, TopicStatus]) -> int | None:
    """Return the topic's number of partitions if the record names one beyond them; otherwise None."""
    status = statuses.get(plan.topic) if isinstance(plan, Record) and plan.partition >= 0 else None
    if not isinstance(status, Available) or plan.partition < status.partitions:
        return None
    return status.partitions


def _lacks_keys(rows: Rows, surveyed: Surveyed) -> bool:
    """Whether a row may lack the key that its topic demands."""
    return any(isinstance(each, Available) and each.keyed for each in surveyed.topics.values()) and None in rows.keys


def _flaw(plan: Any, surveyed: Surveyed) -> Flaw | None:
    """Return why the topic would not take a record now: it lacks the partition, or wants a key or another timestamp."""
    if not isinstance(plan, Record):
        return None
    there = _beyond(plan, surveyed.topics)
    if there is not None:
        why = f"partition {plan.partition} of {plan.topic} does not exist: the topic has {there} partitions"
        return Flaw(Kind.NO_PARTITION, why)
    status = surveyed.topics.get(plan.topic)
    if plan.key is None and isinstance(status, Available) and status.keyed:
        why = f"{plan.topic} takes no record without a key (cleanup.policy=compact)"
        return Flaw(Kind.REJECTED, why, at_once=True)
    if plan.timestamp <= 0 or surveyed.server_ms is None or not isinstance(status, Available):
        return None
    ahead = plan.timestamp - surveyed.server_ms
    for side, limit, distance in (("after", status.after_ms, ahead), ("before", status.before_ms, -ahead)):
        if limit is not None and distance > limit + _CLOCKS_MS:
            why = f"{plan.topic} takes no timestamp so far {side} the present (message.timestamp.{side}.max.ms={limit})"
            return Flaw(Kind.REJECTED, why)
    return None
