"""Joins the group of processes that share an outbox by topic locks; the first process founds the group.

1. All processes of a group have one term, that of the control row. If a group is settled on the present incarnation of
   the database, a process joins it without writing anything.
2. Otherwise the process **founds** the group: it writes a new term, fences every slot of the recorded layout, settles
   what was published, and frees all locks. Only then it records that all is settled on this incarnation. So after a
   restart or a restore of the database, or a change from a leader's relay, everything is settled before a row is read.
3. If several processes want to found the group, the last to write its term does; the others wait and join. If a founder
   dies, another takes its place as soon as its session is gone; if it hangs, once its session was idle for a while.
"""

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from thresher.core.errors import Superseded
from thresher.db.control import ControlRow
from thresher.db.outbox_store import Settling
from thresher.db.postgres.head_queries import TOPIC
from thresher.db.postgres.topic_locks import locks_ddl
from thresher.db.problem import DatabaseRefused
from thresher.db.topic_locks import LockingSession
from thresher.delivery.leader.control_row import require_known_system
from thresher.delivery.names import progress_topic, visitor
from thresher.delivery.progress_topic.topic import broker_explained, known_topic
from thresher.kafka.admin import Admin
from thresher.kafka.producer_problem import ProducerFenced
from thresher.outbox.schema import PENDING
from thresher.relay.leader.assumptions import require_usable
from thresher.relay.leader.take_over import take_over
from thresher.relay.settings import Coordination, Settings, ShardAssignment
from thresher.relay.store import driver_store_of
from thresher.relay.topic_lock.split import require_splits

_ANSWER_SECONDS = 30.0
# After this idle time of its session, a founder is taken to hang. The next founder fences it, whatever it still does.
_FOUNDING_SECONDS = 120.0
_LOOK_SECONDS = 0.1
# No session has this name.
_NONE = "-"


def join(settings: Settings, wanted: Callable[[], bool] = lambda: True) -> ShardAssignment | None:
    """Join the group, or found it, and return the assignment for the workers. None once `wanted` returns False."""
    while wanted():
        found = _look(settings)
        if isinstance(found, ShardAssignment):
            return found
        if not found:
            time.sleep(_LOOK_SECONDS)
            continue
        try:
            if take_over(settings, term=str(uuid.uuid4()), wanted=wanted) is None:
                return None
        except (Superseded, ProducerFenced):
            # Another process founds the group, or a leader's relay has taken over: look again.
            continue
    return None


def _look(settings: Settings) -> ShardAssignment | bool:
    """Return the assignment if there is a group to join; otherwise whether this process may found one now."""
    store = driver_store_of(settings, _ANSWER_SECONDS)
    with closing(store.session(visitor(settings.name), locate=True)) as session:
        settings = replace(settings, outbox=session.outbox)
        differences = require_usable(session, settings)
        _require_index(session, settings)
        session.create_tables()
        row, now = session.control.read(settings.name), session.incarnation()
        if row is None or row.progress_topic_id is None:
            return row is None or _may_found(session, settings, row)
        locks = session.topic_locks()
        locks.create()
        require_splits(locks.splits(), settings.topic_locking.split_topics)
        if row.mode != Coordination.TOPIC_LOCK or row.settled_on != now.since or row.outbox != settings.outbox.quoted():
            return _may_found(session, settings, row)
        require_known_system(settings.name, row, now.system_id)
        admin = Admin.of(settings.kafka)
        with broker_explained():
            admin.require_answer()
        topic = known_topic(admin, progress_topic(settings.name), row.progress_topic_id, pipeline=settings.name)
        return ShardAssignment(
            settings=settings,
            outbox_id=row.outbox_id,
            term=row.term,
            term_time=row.term_time,
            since=now.since,
            progress_topic_id=topic.topic_id,
            secret=row.secret,
            differences=frozenset(differences),
        )


def _may_found(session: LockingSession, settings: Settings, row: ControlRow) -> bool:
    """Whether no other process is founding the group, with its term written and its session alive."""
    if row.settled_on is not None:
        return True
    founder = visitor(settings.name, row.term)
    if session.other_sessions(starting=founder, but=_NONE, within_seconds=_FOUNDING_SECONDS):
        return False
    # The founder's session may be over because it has opened the group since the row was read.
    again = session.control.read(settings.name)
    return again is not None and (again.term, again.settled_on) == (row.term, None)


def _require_index(session: LockingSession, settings: Settings) -> None:
    """Raise `DatabaseRefused` if there is no index by which the pending topics can be found."""
    relation, column = session.relation(), TOPIC[settings.shape]
    fitting = [index for index in (relation.indexes if relation else ()) if index.columns[:2] == (column, "id")]
    # If rows are stamped and stay, an index over all rows would have to step over them.
    plain = settings.settle is Settling.DELETE
    if any(index.predicate == PENDING or (plain and index.predicate is None) for index in fitting):
        return
    ddl = locks_ddl(settings.outbox, settings.shape)[-1]
    raise DatabaseRefused(
        f"{settings.outbox} has no index on ({column}, id), by which topic locks find each topic's rows: "
        f"{ddl} or 'thresher schema create --topic-lock'"
    )
