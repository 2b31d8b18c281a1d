"""Takes an outbox over as a new leader. The order of steps stops the last leader and settles what it published.

1. Check that sessions are not shared by a pooler and that the outbox is usable; create missing tables.
2. Check that the control row belongs to this outbox and database system, and that the progress topic is the known one.
3. End the database sessions of older terms: a process that is stopped could hold a lock on the control row for ever.
4. Write the new term, then repeat steps 2 and 3. From here on, an older leader's shards end at their next look at the
   control row.
5. If the recorded layout (mode and number of shards) differs from ours, or we use topic locks: for each partition of
   the progress topic, fence the id whose claim counts, and settle what was published. Then write our layout. If the
   layout is the same, each shard recovers by itself.
6. Unless this relay sweeps, wait for dispatchers that are sending rows. The new layout keeps other dispatchers from
   starting. Those that found no relay are waited for before the layout is written: a leader that begins after a crash
   of this one must know of them. Processes with topic locks join only once all have ended.
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
from thresher.kafka.admin import Admin, TopicFacts
from thresher.relay.leader.assumptions import require_usable
from thresher.relay.problem import OtherCoordination
from thresher.relay.progress_source import progress_source
from thresher.relay.protocol.progress import Progress, merged
from thresher.relay.settings import Coordination, Settings, ShardAssignment
from thresher.relay.settle import Settlement
from thresher.relay.store import driver_store_of

logger = logging.getLogger(__name__)

# The time-out of a statement. Long, because a whole hour of another layout's progress may have to be settled.
_ANSWER_SECONDS = 60.0
# How long sessions may outlive a process that has just ended, and the pause between two looks at them.
_ENDING_SECONDS, _ASK_AGAIN_SECONDS = 3.0, 0.1


def take_over(
    settings: Settings, *, term: str | None = None, wanted: Callable[[], bool] = lambda: True
) -> ShardAssignment | None:
    """Become the leader, and return the assignment for the shards. Raises an error if that is not possible.

    `term` must be new and unique. Return None if `wanted` returns False shortly before the present leader would be
    displaced.
    """
    term = term or str(uuid.uuid4())
    by_locks = settings.coordination is Coordination.TOPIC_LOCK
    # A founder is no member of the group yet, so its session does not count as a running relay.
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
            admin.require_answer()
        own_topic(admin, source, row, partitions=max(settings.shards, row.shards))
        if not wanted():
            return None
        _require_stopped(session, settings, row, term)
        # A process that was stopped in the middle of a mark may hold a lock on the control row.
        end_older_sessions(session, settings.name, term)
        if not wanted():
            # The statements may have taken long, and another process may lead by now.
            return None
        taken = session.control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed while this relay was starting")
        # Checked again: the row and the topic may have changed before our term was written. From here on they stay.
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
            # Everything is settled, so all locks are freed, and no earlier holder can settle any more.
            locks = session.topic_locks()
            locks.create()
            locks.reset()
        if not settings.sweeps and row.progress_topic_id is None:
            # They found no control table and lock none. Before our layout, so that a successor waits for them too.
            session.await_dispatchers(first=True, within_seconds=_ANSWER_SECONDS)
        _lay_out(session, settings, term, topic)
        if not settings.sweeps:
            # New dispatchers are refused from here on. A dispatcher that is still sending has rows that we would send.
            session.await_dispatchers(first=False, within_seconds=_ANSWER_SECONDS)
        if by_locks:
            # Other processes join from here on, and wait for nobody.
            _lay_out(session, settings, term, topic, settled_on=since)
        since = since if by_locks else session.incarnation().since
        progress_limit(admin, source.topic, {**settings.kafka, **settings.producer})
    return ShardAssignment(
        settings=settings,
        outbox_id=row.outbox_id,
        term=term,
        term_time=row.term_time,
        since=since,
        progress_topic_id=topic.topic_id,
        secret=row.secret,
        differences=frozenset(differences),
    )


def _lay_out(
    session: StoreSession, settings: Settings, term: str, topic: TopicFacts, *, settled_on: str | None = None
) -> None:
    if not session.control.lay_out(
        settings.name,
        term=term,
        mode=settings.mode,
        shards=settings.shards,
        progress_topic_id=topic.topic_id,
        settled_on=settled_on,
    ):
        raise Superseded("a newer relay of the same name has taken over while this one was starting")


def require_polled(settings: Settings, row: ControlRow) -> None:
    """Raise `OtherCoordination` if a tail reads the outbox: both would publish its rows."""
    if row.mode == TAIL:
        raise OtherCoordination(
            f"{settings.outbox} is read from the database's WAL by the tail {settings.name!r}: both would publish its "
            "rows. To poll the table from now on: stop the writers, then the tail's processes, and run 'thresher tail "
            "leave -c FILE'"
        )


def give_up(settings: Settings) -> str:
    """Fence the relay of this name, settle everything that it published, and return the term under which that was done.

    For a tail that takes the outbox over under the same term. No process of the relay may run, and none can go on
    afterwards. After a crash here the control row is still a relay's, and a relay that is started goes on.
    """
    term = str(uuid.uuid4())
    store = driver_store_of(settings, _ANSWER_SECONDS)
    with closing(store.session(f"{sessions(settings.name, term)}/d", locate=True)) as session:
        settings = replace(settings, outbox=session.outbox)
        session.create_tables()
        row = own_row(session, settings.name, term=term, mode=settings.mode, shards=settings.shards)
        if row.mode == TAIL:
            raise OtherCoordination(f"a tail reads {settings.outbox} already: there is no relay to take over from")
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
        session.await_dispatchers(first=False, within_seconds=_ANSWER_SECONDS)
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
    """Raise `OtherCoordination` while processes with the other coordination run.

    A courtesy, no guarantee: a process that is overlooked here is fenced by the term and by the producers' epochs.
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
                "are open in the database. Stop all of its processes first; this relay then settles what they published"
            )
        time.sleep(_ASK_AGAIN_SECONDS)


def _settle_layout(session: StoreSession, settings: Settings, row: ControlRow, shards: int) -> None:
    """Fence every shard that any earlier layout had, and settle what it published last."""
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
    """Fence the producer that may write for a shard, and return the shard's progress log."""
    source = progress_source(settings)
    seal = source.seal(row.secret, shard)
    properties = {**settings.kafka, **settings.producer}
    return fenced_log(source, seal, clock, name=settings.name, properties=properties)
