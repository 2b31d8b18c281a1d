"""A worker that shares an outbox's topics with others: it locks one topic after another, and takes a turn at each.

1. A **round** reads the locks of all topics with pending rows. A topic without a lock gets one, once the cluster has
   the topic (`missing_topics`).
2. Each free lock is taken, worked on (`turn`), and freed. Topics whose producer this worker has kept come first: a turn
   at another topic costs an `init_transactions` and a recovery. Topics that were missing come last, for a second.
3. A topic that errors rests, and the others go on: for `lock_seconds`, or for tenths of a second at first if the cause
   is not the topic. A lock that another process has taken is left to it.
4. A turn that failed is repeated once. If its producer was fenced although the lock is ours, a process that had lost
   the lock fenced it and has left: then the turn is repeated up to three times.

`Superseded`, and errors that a retry cannot help, end the worker. So does a lost database, after which the worker is
started again.
"""

import contextlib
import math
import random
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from thresher.core.errors import Superseded, ThresherError
from thresher.db.control import require_same
from thresher.db.problem import DatabaseLost
from thresher.db.topic_locks import LockLost, LockState, LockTerms, TopicLock
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.names import progress_topic, shard_sessions
from thresher.delivery.shard.in_flight import IN_FLIGHT_KEYS
from thresher.delivery.shard.meter import Meter, count_error
from thresher.delivery.shard.topic_alarm import TopicAlarm
from thresher.kafka.admin import Admin
from thresher.kafka.refusal import fenced
from thresher.relay.progress_source import reserved_topics
from thresher.relay.settings import ShardAssignment
from thresher.relay.store import store_of
from thresher.relay.topic_lock.missing_topics import MissingTopics
from thresher.relay.topic_lock.slots import Slots
from thresher.relay.topic_lock.split import require_split
from thresher.relay.topic_lock.standing import Standing
from thresher.relay.topic_lock.turn import Done, Errored, LockTurns, WorkerResources
from thresher.spark.worker.shard import Shard

# Producers that the workers of a process keep between turns, and each worker at least: each producer has threads and
# connections of its own.
_MAX_KEPT, _MIN_KEPT = 32, 2
# Repetitions of a turn whose producer was fenced; tries of a turn after any other error of a producer or a broker: one
# slow answer is no reason for a topic to rest.
_MAX_FENCES, _MAX_TRIES = 3, 2
# The rest of a topic after an error that was not its own: the first one, and the longest unless the turn took longer.
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 0.1, 5.0
# How long a round takes turns at topics that have a lock and were missing: each costs a recovery.
_MISSING_SECONDS = 1.0


def most_kept(workers: int) -> int:
    """Return how many producers each of a process's workers may keep."""
    return max(_MIN_KEPT, _MAX_KEPT // workers)


def rest_after_own_error(retries: int, took_seconds: float, lock_seconds: float) -> float:
    """Return how long a topic rests after a turn that failed for no fault of the topic: doubled with each failure.

    Never shorter than the turn took: a cause that lasts costs a worker at most half of its time.
    """
    rest = min(_LONGEST_REST_SECONDS, _FIRST_REST_SECONDS * 2.0 ** min(retries, 10))
    return min(lock_seconds, max(rest, took_seconds))


def in_order(
    states: Iterable[LockState], warm: Callable[[LockState], bool], shuffle: Callable[[list[LockState]], None]
) -> list[LockState]:
    """Return `warm` locks, whose kept producers can go on, then others, then missing topics; each in random order."""
    found = list(states)
    shuffle(found)
    return sorted(found, key=lambda state: (state.missing_seconds is not None, not warm(state)))


class Worker:
    """The worker of one Spark task, or of one thread of a program. `close` discards its producers."""

    def __init__(
        self, shard: Shard, assignment: ShardAssignment, shuffle: Callable[[list[LockState]], None] = random.shuffle
    ) -> None:
        settings = assignment.settings
        self._shard, self._assignment, self._shuffle = shard, assignment, shuffle
        application = shard_sessions(settings.name, assignment.term, shard.index)
        store = store_of(settings)
        session = shard.enter(closing(store.session(application)))
        marking = shard.enter(closing(store.session(application, durable=False)))
        found = session.incarnation()
        require_same(found.since, assignment.since)
        self._locks = session.topic_locks()
        self._alarm = TopicAlarm(shard.event)
        meter = Meter(shard, report=shard.event)
        shard.note(IN_FLIGHT_KEYS, meter.in_flight.keys)
        admin = Admin.of(settings.kafka)
        self._resources = WorkerResources(
            shard=shard,
            assignment=assignment,
            session=session,
            locks=self._locks,
            marks=marking.topic_locks(table=found.table),
            admin=admin,
            meter=meter,
            crash=CrashPoints(assignment.hook, shard.index),
            reserved=reserved_topics(settings),
            alarm=self._alarm,
        )
        self._slots = Slots(admin, progress_topic(settings.name))
        locking = settings.topic_locking
        self._terms = LockTerms(
            owner=str(uuid.uuid4()), relay=settings.name, term=assignment.term, seconds=locking.lock_seconds
        )
        self._missing = MissingTopics(
            shard, assignment, self._locks, self._resources.marks, self._terms,
            admin=admin, reserved=self._resources.reserved, crash=self._resources.crash,
        )  # fmt: skip
        self._standing = Standing(shard)
        self._kept: OrderedDict[str, LockTurns] = OrderedDict()
        self._most_kept = most_kept(settings.shards)
        meter.recovered()
        shard.event("relaying")

    def round(self) -> None:
        """Take a turn at every lock that is free."""
        with self._shard.step("look"):
            states = self._locks.pending(self._terms.seconds)
        self._tell(states)
        self._discard_outdated(states)
        self._standing.look(states, time.monotonic())
        until = math.inf
        for state in in_order([*self._missing.tend(states), *self._free(states)], self._is_warm, self._shuffle):
            now = time.monotonic()
            if state.missing_seconds is not None:
                until = min(until, now + _MISSING_SECONDS)
            if self._shard.stopping or now > until:
                return
            self._standing.show(now)
            lock = self._locks.acquire(state, self._terms)
            if lock is None:
                self._require_term()
            else:
                self._work(lock)

    def close(self) -> None:
        """Discard all producers."""
        self._missing.close()
        while self._kept:
            self._kept.popitem()[1].close()

    def _tell(self, states: Sequence[LockState]) -> None:
        """Clear the alarms about topics whose rows no longer wait, whichever worker sent them or set them aside.

        One worker of each process has the alarm about missing topics, of all processes.
        """
        waiting = {state.topic for state in states if state.troubled or state.missing_seconds is not None}
        if ended := self._alarm.topics - waiting:
            self._alarm.lift(ended)
        missing = {state.topic: state.reason or "" for state in states if state.missing_seconds is not None}
        if self._shard.index == 0 and not missing.keys() <= self._alarm.topics:
            self._alarm.raise_for(missing)

    def _discard_outdated(self, states: Sequence[LockState]) -> None:
        """Discard the producers of locks that another worker has taken since: the next turn needs new ones."""
        for state in states:
            kept = self._kept.get(state.name)
            if kept is not None and kept.lock.token != state.token:
                del self._kept[state.name]
                kept.close()

    def _free(self, states: Sequence[LockState]) -> Iterable[LockState]:
        """Yield the locks that can be taken."""
        for state in states:
            if state.token is not None:
                parts = self._assignment.settings.topic_locking.split_topics.get(state.topic, 1)
                require_split(state.topic, recorded=state.parts, told=parts)
                if state.free:
                    yield state

    def _is_warm(self, state: LockState) -> bool:
        kept = self._kept.get(state.name)
        return kept is not None and kept.lock.token == state.token

    def _require_term(self) -> None:
        """Raise `Superseded` if the lock could not be taken because the term is over."""
        row = self._resources.session.control.read(self._assignment.settings.name)
        if row is None or row.term != self._assignment.term:
            raise Superseded("another process has taken over, or is settling after a restart of the database")

    def _work(self, lock: TopicLock) -> None:
        shard, began = self._shard, time.monotonic()
        shard.count("turns")
        try:
            outcome = self._turn(lock)
            if isinstance(outcome, Errored):
                self._fail(lock, outcome, time.monotonic() - began)
            else:
                self._locks.release(lock, waiting=outcome.waiting)
        except LockLost:
            self._drop(lock)
            shard.count("locks_lost")
        except BaseException as error:
            self._drop(lock)
            if not isinstance(error, DatabaseLost):
                # Freed at once: otherwise other processes would have to wait until the lock expires.
                retryable = isinstance(error, ThresherError) and error.retryable
                with contextlib.suppress(ThresherError):
                    self._locks.fail(lock, str(error), early_seconds=self._terms.seconds if retryable else 0.0)
            raise

    def _turn(self, lock: TopicLock) -> Done | Errored:
        """Take a turn. Repeat it once after an error, and a few times if the producer was fenced and the lock kept."""
        fences = tries = 0
        ours = True
        while True:
            turns: LockTurns | None = None
            try:
                turns = self._turns_at(lock)
                outcome = turns.take_turn(lock)
            except ThresherError as error:
                if not error.retryable or isinstance(error, LockLost | DatabaseLost):
                    raise
                self._drop(lock)
                count_error(self._shard, error)
                ours = ours and not (turns is not None and turns.took)
                self._locks.require(lock)
                if fenced(error):
                    fences += 1
                else:
                    tries += 1
                if fences > _MAX_FENCES or tries == _MAX_TRIES or self._shard.stopping:
                    return Errored(str(error), ours=ours)
            else:
                if isinstance(outcome, Errored):
                    self._drop(lock)
                return outcome

    def _turns_at(self, lock: TopicLock) -> LockTurns:
        """Return the kept `LockTurns` of the lock if its producer can go on; otherwise a new one."""
        kept = self._kept.pop(lock.name, None)
        if kept is None or not kept.goes_on(lock):
            if kept is not None:
                kept.close()
            self._slots.require(lock.slot)
            kept = LockTurns(self._resources, lock)
        self._kept[lock.name] = kept
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)[1].close()
        return kept

    def _fail(self, lock: TopicLock, outcome: Errored, took_seconds: float) -> None:
        self._shard.count("errored_turns")
        if not outcome.missing:
            self._shard.event("errored", topic=lock.name, why=outcome.why)
        seconds = self._terms.seconds
        rest = rest_after_own_error(lock.retries, took_seconds, seconds) if outcome.ours else seconds
        self._locks.fail(lock, outcome.why, missing=outcome.missing, early_seconds=seconds - rest)

    def _drop(self, lock: TopicLock) -> None:
        kept = self._kept.pop(lock.name, None)
        if kept is not None:
            kept.close()
        self._resources.meter.forgotten()
