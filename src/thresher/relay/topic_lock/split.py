"""Topics that are locked in parts: each part has the keys of some buckets, and its own lock and slot.

The number of parts is recorded with the topic. A relay with another number in `split_topics` is refused: two processes
that disagree about the parts would send rows of one key at the same time. Only `change_split` changes the number, while
it holds all locks of the topic.
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
    """Raise `OtherSplit` if a topic's recorded number of parts is not the one in `split_topics`."""
    if recorded != told:
        raise OtherSplit(
            f"topic {topic} is locked in {recorded} part{'s' * (recorded > 1)}, and split_topics says {told}: set it "
            f"to {recorded}, or change it for all relays with 'thresher topics split {topic} {told}'"
        )


def require_splits(recorded: Mapping[str, int], told: Mapping[str, int]) -> None:
    """Raise `OtherSplit` for the first topic whose recorded number of parts is not the one in `split_topics`."""
    for topic, parts in sorted(recorded.items()):
        require_split(topic, recorded=parts, told=told.get(topic, 1))


def change_split(settings: Settings, topic: str, parts: int, *, wait_seconds: float) -> int:
    """Change the number of parts in which a topic is locked, and return the old number; 0 if the topic had no lock.

    1. Take all locks of the topic, as a worker does.
    2. Fence the producer of each, and settle what it published.
    3. Record the new number and free the locks, in one transaction. A crash before that changes nothing.

    Raises `TopicBusy` if a lock cannot be taken in time. Relays with the old number in `split_topics` end with
    `OtherSplit`.
    """
    store = driver_store_of(settings, _ANSWER_SECONDS)
    with closing(store.session(visitor(settings.name), locate=True)) as session:
        row = session.control.read(settings.name) if session.control.exists() else None
        if row is None or row.mode != Coordination.TOPIC_LOCK:
            raise DatabaseRefused(
                f"{settings.outbox} is not relayed by topic locks, so no split can be changed: set split_topics instead"
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
    """Fence the producer of a lock's slot, and settle what it published last."""
    clock = ServerClock(session.incarnation().now)
    with fenced_progress(settings, row, lock.slot, clock) as log:
        last = log.last()
    if last is not None:
        locks.settle(lock, fates_of(last))
