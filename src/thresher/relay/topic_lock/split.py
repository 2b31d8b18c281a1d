"""Topics that are locked in parts: each part has the keys of some buckets, and its own lock, slot and order.

The number of parts is recorded with the topic. A relay that was told another number is refused: two processes that
differ about the parts would send rows of a key side by side. Only `change_split` changes it, once nobody works.
"""

import time
import uuid
from collections.abc import Mapping
from contextlib import closing

from thresher.core.clock import ServerClock
from thresher.db.control import ControlRow
from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseRefused
from thresher.db.topic_locks import LockState, LockTerms, TopicLock, TopicLocks
from thresher.delivery.names import visitor
from thresher.relay.leader.take_over import fenced_progress
from thresher.relay.problem import OtherSplit, TopicBusy
from thresher.relay.settings import Coordination, Settings
from thresher.relay.settle import fates_of
from thresher.relay.store import driver_store_of

_ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 0.02


def require_split(topic: str, *, recorded: int, told: int) -> None:
    """Raise `OtherSplit` if a topic is locked in another number of parts than this relay was told."""
    if recorded != told:
        raise OtherSplit(
            f"topic {topic} is locked in {recorded} part{'s' * (recorded > 1)}, and split_topics says {told}: say "
            f"{recorded}, or change it for all with 'thresher topics split {topic} {told}'"
        )


def require_splits(recorded: Mapping[str, int], told: Mapping[str, int]) -> None:
    """Raise `OtherSplit` for the first topic whose recorded number of parts differs from what this relay was told."""
    for topic, parts in sorted(recorded.items()):
        require_split(topic, recorded=parts, told=told.get(topic, 1))


def change_split(settings: Settings, topic: str, parts: int, *, wait_seconds: float) -> int:
    """Lock a topic in another number of parts from now on, and return the number so far; 0 where it had none.

    1. All of its locks are taken, as any worker takes one.
    2. The producer of each is fenced, and what it published is settled.
    3. The new number is recorded and the locks are freed, both or neither. A crash before that changes nothing.

    Raises `TopicBusy` if a lock cannot be had in time. Relays that were told the old number end with `OtherSplit`.
    """
    store = driver_store_of(settings, _ANSWER_SECONDS)
    with closing(store.session(visitor(settings.name), locate=True)) as session:
        row = session.control.read(settings.name) if session.control.exists() else None
        if row is None or row.mode != Coordination.TOPIC_LOCK:
            raise DatabaseRefused(
                f"{settings.outbox} is not relayed by topic locks: there is no split to change; say it in split_topics"
            )
        locks = session.topic_locks()
        locks.create()
        recorded = locks.splits().get(topic)
        if recorded == parts:
            return recorded
        if recorded is None:
            locks.register(topic, parts)
            return 0
        terms = LockTerms(
            owner=f"split/{uuid.uuid4()}",
            relay=settings.name,
            term=row.term,
            seconds=settings.topic_locking.lock_seconds,
        )
        held = _take_all(locks, topic, recorded, terms, wait_seconds)
        for lock in held:
            _settle(session, locks, settings, row, lock)
            for each in held:
                locks.renew(each)
        locks.split(topic, parts, held)
        return recorded


def _take_all(locks: TopicLocks, topic: str, parts: int, terms: LockTerms, wait_seconds: float) -> list[TopicLock]:
    deadline = time.monotonic() + wait_seconds
    held: list[TopicLock] = []
    for part in range(parts):
        wanted = LockState(topic=topic, part=part, parts=parts)
        while (lock := locks.acquire(wanted, terms)) is None:
            if time.monotonic() > deadline:
                for each in held:
                    locks.release(each)
                raise TopicBusy(
                    f"the lock of {wanted.name} was not free for {wait_seconds:g} s: a worker holds it, or it rests "
                    "after an error; try again, or stop the relays of this outbox first"
                )
            for each in held:
                locks.renew(each)
            time.sleep(_LOOK_SECONDS)
        held.append(lock)
    return held


def _settle(session: StoreSession, locks: TopicLocks, settings: Settings, row: ControlRow, lock: TopicLock) -> None:
    """Fence whoever may write with a lock's producer, and settle what was published last."""
    clock = ServerClock(session.incarnation().now)
    with fenced_progress(settings, row, lock.slot, clock) as log:
        last = log.last()
    if last is not None:
        locks.settle(lock, fates_of(last))
