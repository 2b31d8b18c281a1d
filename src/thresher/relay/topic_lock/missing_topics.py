"""Topics that rows name and the cluster does not have: they get no lock and no partition until they are there.

1. A topic without a lock gets one once the cluster has it. New names are asked about in each round, all together.
2. A name that is missing or forbidden is **noted** in the table of locks, over all processes. One worker of each
   process asks about noted names again, and only for a fifth of its time. A note ends with its last row, so that a
   later row has the whole grace; the next process ends those that a crash has left.
3. Once a name has been missing for the grace, its rows are set aside in one transaction of the database, without
   Kafka: nothing was ever sent there by topic locks. Registering a topic waits for that transaction, so no row is both
   sent and set aside. A crash before its commit changes nothing.
4. A look ends after a second, and begins elsewhere the next time: other topics' turns are near.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from thresher.core.topic_name import is_topic
from thresher.db.outbox_store import DeadFate, Fates, Wanted
from thresher.db.topic_locks import LockState, LockTerms, TopicLocks
from thresher.delivery.batch import Reserved, rows_of
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.fate import DEAD_KINDS, Dead, Kind, dead
from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.rules import Rules
from thresher.delivery.shard.meter import count_error
from thresher.delivery.stored_rows import read_of
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import ProducerProblem
from thresher.kafka.topic_status import Available, TopicStatus, TopicSurvey, Unavailable
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.names import buckets_of
from thresher.relay.settings import ShardAssignment
from thresher.relay.shard.producer_factory import make_producer
from thresher.relay.topic_lock.split import require_split
from thresher.spark.worker.shard import Shard

# The names of one question and of one read, the longest look, and the pause before noted names are asked about again:
# at least, and as a multiple of the look's time.
_NAMES, _LOOK_SECONDS, _REST_SECONDS, _PAUSES = 250, 1.0, 0.2, 4.0
# The most rows that one transaction sets aside.
_ROWS = 500
# The number in the transactional id of the producer that only asks: no slot has it.
_NO_SLOT = -1
_LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Topics without a lock, as one look treats them."""

    # Not asked about yet; noted as missing; and names that no topic can have.
    new: Sequence[str] = ()
    noted: Sequence[str] = ()
    odd: Sequence[str] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    overdue: frozenset[str] = frozenset()


def names_of(states: Iterable[LockState], grace_seconds: float) -> Names:
    """Return the topics without a lock by what is known of them."""
    unlocked = [state for state in states if state.token is None]
    notes = {state.topic: state.note for state in unlocked if state.note is not None}
    return Names(
        new=[state.topic for state in unlocked if state.note is None and is_topic(state.topic)],
        noted=list(notes),
        odd=[state.topic for state in unlocked if state.note is None and not is_topic(state.topic)],
        notes=notes,
        overdue=frozenset(
            state.topic
            for state in unlocked
            if state.missing_seconds is not None and state.missing_seconds >= grace_seconds
        ),
    )


class MissingTopics:
    """The topics without a lock, as one worker sees them. For one thread. `close` discards the producer that asks."""

    def __init__(
        self,
        shard: Shard,
        assignment: ShardAssignment,
        locks: TopicLocks,
        rows: TopicLocks,
        terms: LockTerms,
        *,
        admin: Admin,
        reserved: Reserved,
        crash: CrashPoints,
        shuffle: Callable[[list[str]], None] = random.shuffle,
    ) -> None:
        """`rows`: over a session that reads the table which recovery has settled, and no other."""
        settings = assignment.settings
        self._shard, self._settings, self._locks, self._rows, self._terms = shard, settings, locks, rows, terms
        self._reserved, self._crash, self._shuffle = reserved, crash, shuffle
        self._rules = Rules(poison=settings.poison, grace_seconds=settings.limits.grace_seconds)
        self._wanted = Wanted(
            buckets=buckets_of(0, 1), rows=_ROWS, batch_bytes=settings.limits.batch_bytes, largest_bytes=_LARGEST_BYTES
        )
        self._survey = TopicSurvey(admin, self._partitions)
        self._asking: TransactionalProducer | None = None
        # The noted names of the last round, None before the first; and when they may be asked about again.
        self._noted: frozenset[str] | None = None
        self._next_look = 0.0

    def tend(self, states: Sequence[LockState]) -> list[LockState]:
        """Look at the topics without a lock; return the locks of those that have one now."""
        names = names_of(states, self._rules.grace_seconds)
        began = time.monotonic()
        # One worker of a process is enough for what is known to be missing.
        again = self._shard.index == 0 and began >= self._next_look
        if self._shard.index == 0:
            if self._noted is None:
                self._locks.forget_others(names.notes)
            elif ended := self._noted.difference(names.notes):
                self._locks.forget(ended)
            self._noted = frozenset(names.notes)
        if not names.new and not (again and (names.noted or names.odd)):
            if not names.new and not names.noted:
                self.close()
            return []
        with self._shard.step("look for missing topics"):
            found = self._look(names, again=again, until=began + _LOOK_SECONDS)
        if again:
            now = time.monotonic()
            self._next_look = now + max(_REST_SECONDS, _PAUSES * (now - began))
        return found

    def close(self) -> None:
        """Discard the producer that asks."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.discard()

    def _look(self, names: Names, *, again: bool, until: float) -> list[LockState]:
        found: list[LockState] = []
        new, noted = list(names.new), list(names.noted) if again else []
        self._shuffle(new)
        self._shuffle(noted)
        if again:
            self._set_aside(names.odd, {}, {}, until)
        for asked in (*_parts(new), *_parts(noted)):
            if time.monotonic() > until or self._shard.stopping:
                break
            try:
                answers = self._survey.ask(asked)
            except (BrokerLost, ProducerProblem) as error:
                # Asked again in the next round, with another producer.
                self.close()
                count_error(self._shard, error)
                self._shard.event("errored", topic=asked[0], why=str(error))
                break
            for topic, status in answers.items():
                if has(status):
                    found += self._register(topic)
            missing = {topic: status for topic, status in answers.items() if kind_of(status) is not None}
            if newly := {topic: _why(status) for topic, status in missing.items() if topic not in names.notes}:
                self._locks.note(newly, self._terms)
            if overdue := [topic for topic in missing if topic in names.overdue and topic in names.notes]:
                self._set_aside(overdue, names.notes, missing, until)
        return found

    def _register(self, topic: str) -> list[LockState]:
        parts = self._settings.topic_locking.split_topics.get(topic, 1)
        require_split(topic, recorded=self._locks.register(topic, parts), told=parts)
        return [LockState(topic=topic, part=part, parts=parts, token=0) for part in range(parts)]

    def _set_aside(
        self, topics: Sequence[str], notes: Mapping[str, int], missing: Mapping[str, TopicStatus], until: float
    ) -> None:
        """Set aside the rows of these topics, until the time is over."""
        for part in _parts(topics):
            full = True
            while full and time.monotonic() < until and not self._shard.stopping:
                found = self._rows.rows_of(part, self._wanted)
                rows = [self._judged(row, missing) for row in rows_of(read_of(found), self._reserved)] if found else []
                lost = [row for row in RowList(rows).blocked_left_out() if isinstance(row.plan, Dead)]
                full = bool(lost) and self._settle(lost, notes)

    def _judged(self, row: Row, missing: Mapping[str, TopicStatus]) -> Row:
        """Return the row as dead, if it can never be sent or its topic's grace is over."""
        plan = row.plan
        if isinstance(plan, Record):
            kind = kind_of(missing[plan.topic]) if plan.topic in missing else None
            if kind is None:
                return row
            plan = dead(kind, self._rules.grace_over_reason(_why(missing[plan.topic])))
        return row._replace(plan=self._rules.dead_fate(row, plan)) if isinstance(plan, Dead) else row

    def _settle(self, rows: Sequence[Row], notes: Mapping[str, int]) -> bool:
        """Set rows aside; return whether that was done, and more rows may follow."""
        fates = [DeadFate(row.id, row.create_time, *row.plan) for row in rows if isinstance(row.plan, Dead)]
        held = {row.topic: notes[row.topic] for row in rows if row.topic in notes}
        middle = lambda: self._crash.reach(CrashPoint.SETTLING, [row.id for row in rows])  # noqa: E731
        found = self._locks.set_aside(held, Fates(ids=(), create_times=(), dead=fates), self._terms, middle)
        if not found:
            return False
        self._shard.count("dead", found)
        for row in rows[:found]:
            if isinstance(row.plan, Dead):
                self._shard.count(f"dead.{row.plan.kind}")
        self._shard.event("dead", rows=found, first=fates[0].id, why=fates[0].reason)
        return True

    def _partitions(self, topic: str) -> int | KafkaError:
        """Ask through a producer: this lets a broker with auto-creation create the topic."""
        if self._asking is None:
            self._asking = make_producer(self._settings, _NO_SLOT, 0, {}, brief=True)
        return self._asking.partitions(topic)


def has(status: TopicStatus) -> bool:
    """Whether the cluster has a topic to which we may write, healthy or not."""
    return isinstance(status, Available) or status.refusal is None


def kind_of(status: TopicStatus) -> Kind | None:
    """Return as what the rows of a missing or forbidden topic are set aside; None if it is there, or not known."""
    return DEAD_KINDS.get(status.refusal) if isinstance(status, Unavailable) and status.refusal is not None else None


def _why(status: TopicStatus) -> str:
    return status.why if isinstance(status, Unavailable) else ""


def _parts(topics: Sequence[str]) -> list[Sequence[str]]:
    return [topics[start : start + _NAMES] for start in range(0, len(topics), _NAMES)]
