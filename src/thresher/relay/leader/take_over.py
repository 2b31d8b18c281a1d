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

from thresher.core.clock import ServerClock
from thresher.core.errors import Superseded
from thresher.db.control import TAIL, ControlRow
from thresher.db.outbox_store import StoreSession
from thresher.db.topic_locks import LockingSession
from thresher.delivery.leader.control_row import end_older_sessions, own_row
from thresher.delivery.names import sessions, visitor
from thresher.delivery.progress_topic.fencing import fenced_log
from thresher.delivery.progress_topic.own_topic import own_topic
from thresher.delivery.progress_topic.progress_log import ProgressLog
from thresher.delivery.progress_topic.topic import broker_explained, known_topic, progress_limit
from thresher.kafka.admin import Admin
from thresher.relay.leader.assumptions import require_usable
from thresher.relay.problem import OtherCoordination
from thresher.relay.progress_source import progress_source
from thresher.relay.protocol.progress import Progress, merged
from thresher.relay.settings import Coordination, Mandate, Settings
from thresher.relay.settle import Settlement
from thresher.relay.store import driver_store_of

logger = logging.getLogger(__name__)

# How long the database may take to answer: settling an hour of another layout takes its time.
_ANSWER_SECONDS = 60.0
# How long the sessions of a process that has just ended may stay, and how often they are looked for.
_ENDING_SECONDS, _ASK_AGAIN_SECONDS = 3.0, 0.1


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
        row = own_row(session, settings.name, term=term, mode=settings.mode, shards=settings.shards)
        require_polled(settings, row)
        source = progress_source(settings)
        admin = Admin.of(settings.kafka)
        with broker_explained():
            admin.greet()
        own_topic(admin, source, row, partitions=max(settings.shards, row.shards))
        if not wanted():
            return None
        _require_stopped(session, settings, row, term)
        # A stopped one may hold the control row too, in the middle of a mark.
        end_older_sessions(session, settings.name, term)
        if not wanted():
            # The database took its time, and another process may lead by now.
            return None
        taken = session.control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed while this relay was starting")
        # What was read before the term may have changed since: only from here on it stays.
        row = taken
        require_polled(settings, row)
        topic = own_topic(admin, source, row, partitions=max(settings.shards, row.shards))
        end_older_sessions(session, settings.name, term)
        needed = max(settings.shards, row.shards)
        if topic.partitions < needed:
            with broker_explained():
                admin.widen_topic(source.topic, needed)
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
        progress_limit(admin, source.topic, {**settings.kafka, **settings.producer})
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


def require_polled(settings: Settings, row: ControlRow) -> None:
    """Raise `OtherCoordination` if the outbox is a tail's: both would publish its rows."""
    if row.mode == TAIL:
        raise OtherCoordination(
            f"{settings.outbox} is read from the database's log by the tail {settings.name!r}: both would publish its "
            "rows. To poll the table from now on: stop the tail's processes, let writers stand still, and 'thresher "
            "tail leave -c FILE'"
        )


def give_up(settings: Settings) -> str:
    """Fence and settle whatever a relay of this name has published, and return the term under which that was done.

    No process of the relay may run. Nothing of it goes on afterwards: whoever takes the outbox over does so under this
    term. A crash here leaves a relay's control row, and a relay that is started goes on.
    """
    term = str(uuid.uuid4())
    store = driver_store_of(settings, _ANSWER_SECONDS)
    with closing(store.session(f"{sessions(settings.name, term)}/d", locate=True)) as session:
        settings = replace(settings, outbox=session.outbox)
        session.create_tables()
        row = own_row(session, settings.name, term=term, mode=settings.mode, shards=settings.shards)
        if row.mode == TAIL:
            raise OtherCoordination(f"{settings.outbox} is read from the log already: there is no relay to follow")
        _require_none(session, settings, term)
        taken = session.control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed meanwhile: nothing was changed")
        end_older_sessions(session, settings.name, term)
        if taken.progress_topic_id is None:
            return term
        admin, source = Admin.of(settings.kafka), progress_source(settings)
        topic = known_topic(admin, source.topic, taken.progress_topic_id, pipeline=settings.name)
        _settle_layout(session, settings, taken, topic.partitions)
        session.await_dispatchers()
        return term


def _require_none(session: LockingSession, settings: Settings, term: str) -> None:
    """Raise `OtherCoordination` while a process of the relay runs."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while running := session.other_sessions(starting=sessions(settings.name), but=sessions(settings.name, term)):
        if time.monotonic() > deadline:
            raise OtherCoordination(
                f"the relay {settings.name!r} still runs: {running} sessions of it are open in the database. Stop all "
                "of its processes first"
            )
        time.sleep(_ASK_AGAIN_SECONDS)


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
        with fenced_progress(settings, row, shard, ServerClock(now.now)) as log:
            last = log.last()
            if last is None:
                continue
            whole = last.origin.incarnation != now.since
            for each in merged(log.whole()) if whole else [last]:
                if settlement.execute(each) < len(each.ids):
                    settlement.require_gone(each, recovering=True)


def fenced_progress(settings: Settings, row: ControlRow, shard: int, clock: ServerClock) -> ProgressLog[Progress]:
    """Fence whoever may write for a shard, and return the log of what was written."""
    source = progress_source(settings)
    seal = source.seal(row.secret, shard)
    properties = {**settings.kafka, **settings.producer}
    return fenced_log(source, seal, row.outbox_id, clock, name=settings.name, properties=properties)
