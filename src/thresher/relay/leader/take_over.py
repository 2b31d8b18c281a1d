"""A new leader takes over: in this order, so that whatever ran before neither goes on nor is forgotten.

1. The database keeps our sessions; the outbox is what it should be; the tables beside it are there.
2. The control row is this outbox's, on this database system; the progress topic is the one that it knows.
3. The term is written. From here on older leaders' shards end when they next look.
4. The database sessions of older terms are ended: a stopped one could hold row locks for ever.
5. Where the recorded layout differs from ours, every transactional id of the recorded one is fenced, and what it
   published is settled, before ours is written. Same layout: the shards recover themselves.
6. Unless we sweep, the dispatchers that are sending rows are waited for: the layout keeps others from beginning.
"""

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from thresher.core.clock import ServerClock
from thresher.core.errors import Superseded
from thresher.db.control import ControlRow, NewControlRow
from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseRefused
from thresher.db.topic_locks import LockingSession
from thresher.delivery.claims import LANES, Claim
from thresher.delivery.problem import ForeignProgress
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.committed_tail import Opener
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import InitBlocked
from thresher.kafka.transactional import TransactionalProducer
from thresher.relay.leader.assumptions import require_known_system, require_usable
from thresher.relay.leader.progress_topic import KEPT, broker_explained, known_topic, progress_limit, require_kept
from thresher.relay.names import progress_topic, sessions, transactional_id, visitor
from thresher.relay.problem import OtherCoordination
from thresher.relay.progress_log import ProgressLog
from thresher.relay.protocol.progress import merged
from thresher.relay.protocol.seal import Seal
from thresher.relay.settings import Coordination, Mandate, Settings
from thresher.relay.settle import Settlement
from thresher.relay.store import driver_store_of

logger = logging.getLogger(__name__)

# How long the database may take to answer: settling an hour of another layout takes its time.
_ANSWER_SECONDS = 60.0
# How long the sessions of a process that has just ended may stay, and how often they are looked for.
_ENDING_SECONDS, _ASK_AGAIN_SECONDS = 3.0, 0.1
# Its age is the broker's word: the clock of a relay may be wrong.
_TOPIC_CONFIG = {**KEPT, "message.timestamp.type": "LogAppendTime"}


def take_over(
    settings: Settings, *, term: str | None = None, wanted: Callable[[], bool] = lambda: True
) -> Mandate | None:
    """Become the leader, and return what the shards are to be told. Raises what keeps it from that.

    The term is one that nobody has had before. None if it is not wanted any more when it is about to displace whoever
    leads now.
    """
    term = term or str(uuid.uuid4())
    by_locks = settings.coordination is Coordination.TOPIC_LOCK
    # Whoever founds a group is no member yet: a leader's relay does not mind it.
    application = visitor(settings.name, term) if by_locks else f"{sessions(settings.name, term)}/d"
    store = driver_store_of(settings, _ANSWER_SECONDS)
    store.require_sessions(application)
    with closing(store.session(application, locate=True)) as session:
        settings = replace(settings, outbox=session.outbox)
        differences = require_usable(session, settings)
        session.create_tables()
        row = _own_row(session, settings, term)
        admin = Admin.of(settings.kafka)
        with broker_explained():
            admin.greet()
        _progress_topic(admin, settings, row)
        if not wanted():
            return None
        _require_stopped(session, settings, row, term)
        # A stopped one may hold the control row too, in the middle of a mark.
        _end_sessions(session, settings, term)
        if not wanted():
            # The database took its time, and another process may lead by now.
            return None
        taken = session.control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed while this relay was starting")
        # What was read before the term may have changed since: only from here on it stays.
        row = taken
        topic = _progress_topic(admin, settings, row)
        _end_sessions(session, settings, term)
        needed = max(settings.shards, row.shards)
        if topic.partitions < needed:
            with broker_explained():
                admin.widen_topic(progress_topic(settings.name), needed)
        since = session.incarnation().since
        if by_locks or (row.mode, row.shards) != (settings.mode, settings.shards):
            _settle_layout(session, settings, row, max(needed, topic.partitions))
        if by_locks or row.mode == Coordination.TOPIC_LOCK:
            # No holder of a lock settles anything any more: that has been done for it.
            locks = session.topic_locks()
            locks.create()
            locks.reset()
        laid_out = session.control.lay_out(
            settings.name,
            term=term,
            mode=settings.mode,
            shards=settings.shards,
            progress_topic_id=topic.topic_id,
            settled_on=since if by_locks else None,
        )
        if not laid_out:
            raise Superseded("a newer relay of the same name has taken over while this one was starting")
        if not settings.sweeps:
            # Dispatchers that begin from here on are refused; one that was sending holds rows that we would send too.
            session.await_dispatchers()
        since = since if by_locks else session.incarnation().since
        progress_limit(admin, settings)
    return Mandate(
        settings=settings,
        outbox_id=row.outbox_id,
        term=term,
        term_time=row.term_time,
        since=since,
        progress_topic_id=topic.topic_id,
        secret=row.secret,
        differences=frozenset(differences),
    )


def _require_stopped(session: LockingSession, settings: Settings, row: ControlRow, term: str) -> None:
    """Raise `OtherCoordination` while processes run that share the outbox in the other way.

    Nothing rests on it but peace: the control row's term and the producers' epochs fence whoever is overlooked.
    """
    by_locks = Coordination.TOPIC_LOCK
    if row.progress_topic_id is None or (row.mode == by_locks) == (settings.coordination is by_locks):
        return
    deadline = time.monotonic() + _ENDING_SECONDS
    while running := session.other_sessions(starting=sessions(settings.name), but=sessions(settings.name, term)):
        if time.monotonic() > deadline:
            theirs = "locks topics (coordination: topic-lock)" if row.mode == by_locks else "has a leader"
            raise OtherCoordination(
                f"{settings.outbox} is relayed by a relay that {theirs}, and it still runs: {running} sessions of it "
                "are open in the database. Stop all of its processes first; what they left is settled then"
            )
        time.sleep(_ASK_AGAIN_SECONDS)


def _own_row(session: StoreSession, settings: Settings, term: str) -> ControlRow:
    system = session.incarnation().system_id
    new = NewControlRow(
        name=settings.name,
        outbox=settings.outbox.quoted(),
        outbox_id=str(uuid.uuid4()),
        system_id=system,
        term=term,
        mode=settings.mode,
        shards=settings.shards,
    )
    if others := session.control.insert(new):
        raise ForeignProgress(
            f"{settings.outbox} is relayed under the name {others[0]!r}: two relays would send its rows twice. "
            f"Give this one that name; or, once that one has stopped for good, 'thresher adopt {settings.name} "
            f"--instead-of {others[0]}'"
        )
    row = session.control.read(settings.name)
    if row is None:
        raise Superseded("the control row was removed while this relay was starting")
    if row.outbox != settings.outbox.quoted():
        raise ForeignProgress(
            f"the name {settings.name!r} is that of a relay of {row.outbox}: {settings.outbox} needs another name"
        )
    require_known_system(settings.name, row, system)
    return row


def _progress_topic(admin: Admin, settings: Settings, row: ControlRow) -> TopicFacts:
    """Return the progress topic, made if this relay never had one; another one under its name is refused."""
    name = progress_topic(settings.name)
    if row.progress_topic_id is None:
        with broker_explained():
            if admin.topic(name) is None:
                admin.create_topic(name, partitions=max(settings.shards, row.shards), config=_TOPIC_CONFIG)
    found = known_topic(admin, settings.name, row.progress_topic_id)
    require_kept(admin, settings.name)
    ours, theirs = False, ""
    for partition in range(found.partitions):
        # Before anything is fenced: the rightful owner must not notice.
        with ProgressLog.of(seal_of(settings, row, partition), row.outbox_id, settings.kafka) as log:
            ours |= log.last() is not None
        if log.other_outbox is not None:
            theirs = f"belongs to another outbox ({log.other_outbox}, this is {row.outbox_id})"
        elif log.strangers:
            theirs = theirs or "holds records that no relay wrote"
    # A topic that this relay has had is its own, whatever others have written to it.
    if theirs and not ours and row.progress_topic_id is None:
        raise ForeignProgress(
            f"the progress topic {name} {theirs}: it must be the relay's alone, and two outboxes on one broker need "
            "different names"
        )
    return found


def seal_of(settings: Settings, row: ControlRow, partition: int) -> Seal:
    """Return the seal of a partition of the progress topic."""
    return Seal(secret=row.secret, topic=progress_topic(settings.name), partition=partition)


def _end_sessions(session: StoreSession, settings: Settings, term: str) -> None:
    try:
        session.end_sessions(starting=sessions(settings.name), but=sessions(settings.name, term))
    except DatabaseRefused as error:
        # They belong to another role: what they hold is freed when they have been idle for long enough.
        logger.warning("sessions of an older term were not ended: %s", error, extra={"relay": settings.name})


def _settle_layout(session: StoreSession, settings: Settings, row: ControlRow, shards: int) -> None:
    """Fence every shard that any layout so far had, and settle what it published last."""
    logger.info(
        "the layout changes from %d shards (%s) to %d (%s)",
        row.shards,
        row.mode,
        settings.shards,
        settings.mode,
        extra={"relay": settings.name, "shards": settings.shards, "mode": settings.mode},
    )
    settlement = Settlement(session.settlement)
    now = session.incarnation()
    for shard in range(shards):
        with fenced_log(settings, seal_of(settings, row, shard), row.outbox_id, ServerClock(now.now)) as log:
            last = log.last()
            if last is None:
                continue
            whole = last.origin.incarnation != now.since
            for each in merged(log.whole()) if whole else [last]:
                if settlement.execute(each) < len(each.ids):
                    settlement.require_gone(each, recovering=True)


def fenced_log(settings: Settings, seal: Seal, outbox_id: str, clock: ServerClock) -> ProgressLog:
    """Fence whoever may write for a shard, with the lane whose claim counts, and return the log of what was written."""
    claim = Claim(lane=0, claimant=str(uuid.uuid4()))
    for _ in range(LANES + 1):
        name = transactional_id(settings.name, seal.partition, claim.lane)
        producer = TransactionalProducer(name, {**settings.kafka, **settings.producer})
        blocked: InitBlocked | None = None
        try:
            try:
                producer.init(seal.topic)
            except InitBlocked as problem:
                # Its owner may have left it for another lane.
                blocked = problem
            producer.now_ms = clock.now_ms()
            # A broker that was cut off may show an old end of the progress, and does not show the claim.
            written = None if blocked is not None else partial(_claimed, producer, claim, seal)
            log = ProgressLog.of(seal, outbox_id, settings.kafka, commit_opener=written)
            try:
                log.last()
            except BaseException:
                log.close()
                raise
        finally:
            producer.discard()
        if blocked is None and log.holder == claim:
            return log
        log.close()
        if blocked is not None and log.holder.lane == claim.lane:
            raise blocked
        claim = replace(claim, lane=log.holder.lane, number=claim.number + 1)
    raise BrokerLost(f"another relay writes progress for shard {seal.partition} of {settings.name}")


def _claimed(producer: TransactionalProducer, claim: Claim, seal: Seal) -> Opener:
    """Commit a claim to the progress partition."""
    key = claim.encoded()
    record = (seal.topic, b"", key, seal.partition, 0, seal.headers(key, b""))
    producer.begin()
    producer.produce([(0, record)])
    if undelivered := producer.flush():
        raise BrokerLost(f"a record for {undelivered[0].topic} was not delivered: {undelivered[0].why}")
    producer.commit()
    return Opener.of(record)
