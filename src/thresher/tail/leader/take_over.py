"""A tail takes over an outbox. The order ensures that an older reader cannot go on, and that its progress is kept.

1. Check that the database keeps our sessions, and create the tables for control and dead rows if they are missing.
2. Check that the control row is of this outbox, of this database system, and in the mode of a tail. Check that the
   progress topic is the one in the control row, and that the WAL can be read with the slot and the publication.
3. End the database sessions of older terms, and the session that reads the slot: a suspended reader would keep it.
4. Write the new term. From here on the shards of older tails end at their next check.
5. Repeat steps 2 and 3: what was checked before may have changed until the term was written.
6. Write the layout under the term. The shard recovers by itself.
"""

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from thresher.core.errors import Superseded
from thresher.db.control import TAIL, ControlRow
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect_within
from thresher.db.postgres.store import PostgresSession, PostgresStore
from thresher.delivery.leader.control_row import end_older_sessions, own_row
from thresher.delivery.names import sessions
from thresher.delivery.progress_topic.own_topic import own_topic
from thresher.delivery.progress_topic.topic import broker_explained, progress_limit
from thresher.kafka.admin import Admin
from thresher.tail.log_span import LogSpan, changed, since_mark
from thresher.tail.log_state import not_published, what_to_do
from thresher.tail.problem import LogLost, OtherReader
from thresher.tail.settings import TailAssignment, TailSettings, Via
from thresher.tail.slot import LogUnreadable, free_slot, require_readable

# The time-out for an answer of the database.
_ANSWER_SECONDS = 30.0


def driver_store_of(settings: TailSettings, seconds: float = _ANSWER_SECONDS) -> PostgresStore:
    """Return the driver's store. A statement that is not answered within `seconds` raises `DatabaseLost`."""
    return PostgresStore(settings.dsn, settings.beside, settings.shape, make=connect_within(seconds))


def take_over(
    settings: TailSettings, *, term: str | None = None, wanted: Callable[[], bool] = lambda: True
) -> TailAssignment | None:
    """Become the leader, and return the assignment for the shard. Raises if that is not possible.

    None if `wanted` turns false before the present leader is displaced.
    """
    term = term or str(uuid.uuid4())
    application = f"{sessions(settings.name, term)}/d"
    store = driver_store_of(settings)
    store.require_sessions(application)
    with closing(store.session(application, locate=settings.via is Via.TABLE)) as session:
        # Default names of slot and publication come from the configured name, not from the one with the found schema.
        settings = replace(
            settings,
            outbox=session.outbox if settings.via is Via.TABLE else settings.outbox,
            placed=session.outbox,
            slot=settings.slot_name,
            publication=settings.publication_name,
        )
        slots = PostgresSlots(session.connection)
        session.create_tables()
        row = own_row(session, settings.name, outbox=settings.outbox, term=term, mode=TAIL, shards=1)
        require_tailed(settings, row)
        admin = Admin.of(settings.kafka)
        with broker_explained():
            admin.require_answer()
        own_topic(admin, settings.progress, row, partitions=1)
        _require_log(slots, settings, row)
        if not wanted():
            return None
        _end_readers(session, slots, settings, term)
        if not wanted():
            # Ending sessions may take long; another process may lead by now.
            return None
        taken = session.control.take(settings.name, term)
        if taken is None:
            raise Superseded("the control row was removed while this tail was starting")
        # Check again: the control row may have changed before the term was written, but cannot from here on.
        require_tailed(settings, taken)
        topic = own_topic(admin, settings.progress, taken, partitions=1)
        _end_readers(session, slots, settings, term)
        # In this order: a change of the publication after the first query is noticed.
        published = slots.published(settings.publication_name, settings.table)
        slot = _require_log(slots, settings, taken)
        span = LogSpan(published=published, first_xid=slots.next_transaction())
        if settings.table is not None:
            span = since_mark(span, slots.marked(settings.publication_name), slot)
        since = session.incarnation().since
        # After `adopt`, the control row gets its topic from the shard, once the term's first record is committed.
        laid_out = session.control.lay_out(
            settings.name, term=term, mode=TAIL, shards=1, progress_topic_id=taken.progress_topic_id
        )
        if not laid_out:
            raise Superseded("a newer tail of the same name has taken over while this one was starting")
        progress_limit(admin, settings.progress.topic, settings.properties)
    return TailAssignment(
        settings=settings,
        outbox_id=taken.outbox_id,
        term=term,
        term_time=taken.term_time,
        since=since,
        progress_topic_id=topic.topic_id,
        secret=taken.secret,
        confirmed=slot,
        span=span,
        adopted=taken.progress_topic_id is None,
    )


def require_tailed(settings: TailSettings, row: ControlRow) -> None:
    """Raise `OtherReader` if a relay publishes from the outbox: both would publish its rows."""
    if row.mode != TAIL:
        raise OtherReader(
            f"{settings.outbox} is relayed by {settings.name!r}, which polls the table ({row.mode}): both would "
            "publish its rows. To read it from the WAL from now on: pause writers, let the relay drain the table, stop "
            "its processes, and run 'thresher tail join -c FILE'; writers may go on after that"
        )


def _require_log(slots: PostgresSlots, settings: TailSettings, row: ControlRow) -> int:
    """Return the slot's confirmed position. Raises `LogUnreadable`, or `LogLost` if committed rows may be missing."""
    try:
        found = require_readable(slots, settings.slot_name, settings.publication_name, settings.source)
    except LogUnreadable as error:
        slot = slots.slot(settings.slot_name)
        published = slots.published(settings.publication_name, settings.table)
        source = settings.progress
        with source.log(source.seal(row.secret, 0)) as log:
            last = log.last() if row.progress_topic_id is not None else None
        if last is None:
            raise
        if slot is None or slot.lost:
            raise LogLost(f"{error}. {what_to_do(last.coverage, settings.source, settings.name)}") from error
        if changed(last.span, published):
            raise LogLost(f"{error}; {not_published(slot.confirmed or 0, settings.source, settings.name)}") from error
        raise
    return found.confirmed or 0


def _end_readers(session: PostgresSession, slots: PostgresSlots, settings: TailSettings, term: str) -> None:
    end_older_sessions(session, settings.name, term)
    free_slot(slots, settings.slot_name)
