"""Switches an outbox table from a relay to a tail, or back, without losing a row or publishing one twice.

**Join** (from a relay): before the call, no process of the relay runs, its published rows are settled, and it is fenced
under a term. Then, in one transaction:
1. Lock the table: this waits for the transactions that have written to it, and new writers wait for a moment.
2. Check that no row is pending: the relay has published everything that was committed.
3. Advance the slot to the present end of the WAL, and give the control row the mode of a tail.

**Leave** (to a relay): no process of the tail runs. The tail is fenced under a new term, and most of the WAL is read.
Then, in one transaction:
1. Lock the table, as above.
2. Read the WAL to its end. Check that it has no gap, that every change is decided, and that no row of the table is
   older than the part that was read without a gap. Write the dead changes that the last record names to the dead table.
3. So all rows of the table were published: delete them, and give the control row the mode of a relay.
Then the slot is dropped. A crash before the transaction commits changes nothing.
"""

import time
import uuid
from contextlib import closing
from dataclasses import replace

from thresher.core.clock import ServerClock
from thresher.db.control import TAIL
from thresher.db.postgres.replication.connection import ReplicationConnection
from thresher.db.postgres.replication.dead_changes import DeadChanges
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.replication.tailed_table import TailedTable
from thresher.db.postgres.store import PostgresSession
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.delivery.names import sessions, shard_sessions
from thresher.delivery.progress_topic.fencing import fenced_log
from thresher.tail.buffer import Bounds, LogBuffer
from thresher.tail.leader.take_over import driver_store_of, take_over
from thresher.tail.log_span import changed
from thresher.tail.log_state import LogState, missing, not_published, on_timeline, what_to_do
from thresher.tail.problem import LogLost, OtherReader
from thresher.tail.progress import TailProgress
from thresher.tail.settings import TailAssignment, TailSettings, Via
from thresher.tail.slot import require_readable
from thresher.tail.stream import LogStream

# Time-outs: to read the WAL before the table is locked, and for the server to release a slot whose reader is gone.
_READ_SECONDS, _FREE_SECONDS = 60.0, 10.0
# Time-out to read the rest of the WAL under the lock: the server ends a session that idles longer in a transaction.
_LOCKED_SECONDS = 10.0
_LOOK_SECONDS = 0.1
# Time-out for the database sessions of processes that have just ended.
_ENDING_SECONDS = 3.0
# The mode in the control row until a relay takes over.
_RELAYED = "exactly-once"


def join(settings: TailSettings, term: str) -> int:
    """Take the outbox over from a relay that was fenced under this term; return the position where the tail begins."""
    require_table(settings)
    with closing(driver_store_of(settings).session(f"{sessions(settings.name, term)}/d", locate=True)) as session:
        slot, publication = settings.slot_name, settings.publication_name
        settings = replace(settings, outbox=session.outbox)
        slots = PostgresSlots(session.connection)
        require_readable(slots, slot, publication, settings.source)
        table = TailedTable(session.connection, session.outbox, settings.shape)
        with table.locked() as end:
            if waiting := table.pending():
                many = "more than 10,000" if waiting > 10_000 else str(waiting)
                raise OtherReader(
                    f"{many} rows of {session.outbox} are not published yet: pause writers, start the relay again, and "
                    "let it drain the table before the tail joins. Nothing was changed"
                )
            table.advance(slot, end)
            # The slot has all rows that later transactions insert. Without the mark, those from before the tail's first
            # start stay in the table.
            slots.mark(publication, session.outbox)
            table.hand_over(settings.name, term=term, mode=TAIL)
        return end


def leave(settings: TailSettings) -> int:
    """Hand the outbox back to a relay, and drop the slot. Return how many published rows were deleted."""
    require_table(settings)
    _require_stopped(settings)
    assignment = take_over(settings)
    if assignment is None:
        raise AssertionError("it was wanted")
    settings = assignment.settings
    with closing(driver_store_of(settings).session(f"{sessions(settings.name, assignment.term)}/d")) as session:
        source = settings.progress
        clock = ServerClock(session.incarnation().now)
        seal = source.seal(assignment.secret, 0)
        with fenced_log(source, seal, clock, name=settings.group, properties=settings.properties) as log:
            last = log.last()
        if last is None:
            raise OtherReader(
                f"no tail has published from {settings.outbox} yet: start the tail, and let it publish the pending "
                "rows, before it leaves. Nothing was changed"
            )
        buffer = LogBuffer(Bounds(rows=10_000))
        table = TailedTable(session.connection, settings.outbox, settings.shape)
        with closing(_begun(session, assignment, last, buffer)) as stream:
            # Most of the WAL is read before the lock, so that writers wait only for the rest.
            _read_to(table.log_end(), stream, session, settings, buffer, _READ_SECONDS)
            with table.locked() as end:
                _read_to(end, stream, session, settings, buffer, _LOCKED_SECONDS)
                if buffer.rows:
                    raise OtherReader(
                        f"the WAL holds rows of {settings.outbox} that were not published yet: pause writers, start "
                        "the tail again, and let it publish them before it leaves. Nothing was changed"
                    )
                if older := table.older(last.span.first_xid):
                    many = "more than 10,000" if older > 10_000 else str(older)
                    raise OtherReader(
                        f"{many} rows of {settings.outbox} were written before its tail first started, or before its "
                        "slot was adopted: it is not known which of them were published. Delete the published ones, "
                        "and insert the others again while the tail runs, before it leaves. Nothing was changed"
                    )
                deleted = table.empty()
                table.hand_over(settings.name, term=assignment.term, mode=_RELAYED)
        _drop(PostgresSlots(session.connection), settings.slot_name)
    return deleted


def _begun(session: PostgresSession, assignment: TailAssignment, last: TailProgress, buffer: LogBuffer) -> LogStream:
    """Return a stream from the slot, with the last record's coverage in the buffer. Raises `LogLost` for a gap."""
    settings = assignment.settings
    slots = PostgresSlots(session.connection)
    application = shard_sessions(settings.name, assignment.term, 0)
    # In this order: a change of the publication after the first query is noticed.
    published = slots.published(settings.publication_name, settings.table)
    slot = require_readable(slots, settings.slot_name, settings.publication_name, settings.source)
    with closing(ReplicationConnection(settings.dsn, application)) as connection:
        now = connection.identify()
        left = [(each.timeline, each.end) for each in connection.timeline_ends(now.timeline)]
    state = LogState(
        system_id=now.system_id, timeline=now.timeline, end=now.position, left=left, confirmed=slot.confirmed or 0
    )  # fmt: skip
    if changed(last.span, published):
        raise LogLost(not_published(state.confirmed, settings.source, settings.name))
    if found := missing(last.origin, last.coverage, state):
        what = what_to_do(last.coverage, settings.source, settings.name)
        raise LogLost(f"committed rows may be missing, and rows of the table may be unpublished: {found.why}. {what}")
    stream = LogStream(
        settings.dsn,
        application=application,
        slot=settings.slot_name,
        publication=settings.publication_name,
        source=settings.source,
    )
    buffer.cover(on_timeline(last.origin, last.coverage, state))
    buffer.begin_at(state.confirmed)
    return stream


def _read_to(
    end: int,
    stream: LogStream,
    session: PostgresSession,
    settings: TailSettings,
    buffer: LogBuffer,
    seconds: float,
) -> None:
    """Read the WAL into the buffer up to a position, or until a change comes that was not published."""
    dead = DeadChanges(session.connection, settings.outbox, settings.shape, in_table=True)
    deadline = time.monotonic() + seconds
    while not buffer.rows and (buffer.quiet_at is None or buffer.quiet_at < end):
        if time.monotonic() > deadline:
            raise DatabaseLost(f"the WAL was not read to its end within {seconds:.0f} seconds: try again")
        chunk = stream.read(1_000, 1 << 24, _LOOK_SECONDS)
        if chunk is None:
            continue
        if named := buffer.add(chunk):
            dead.set_aside([(each.row, (*each.fate,)) for each in named])
        buffer.dead_written()


def _drop(slots: PostgresSlots, slot: str) -> None:
    deadline = time.monotonic() + _FREE_SECONDS
    while True:
        try:
            slots.drop(slot)
        except DatabaseRefused:
            # The server may not have noticed yet that the slot's reader is gone.
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return


def require_table(settings: TailSettings) -> None:
    """Raise `OtherReader` if the outbox has no table that a relay could poll."""
    if settings.via is Via.LOG:
        raise OtherReader(
            f"messages of {settings.outbox} are in the WAL only: there is no table that a relay could poll"
        )


def _require_stopped(settings: TailSettings) -> None:
    """Raise `OtherReader` if a process of the tail still runs, or if this outbox has no tail."""
    own = str(uuid.uuid4())
    with closing(driver_store_of(settings).session(f"{sessions(settings.name, own)}/d", locate=True)) as session:
        row = session.control.read(settings.name) if session.control.exists() else None
        if row is None or row.mode != TAIL:
            raise OtherReader(
                f"no tail named {settings.name!r} publishes from {session.outbox}, so none can leave: check 'name' and "
                "'outbox'. Nothing was changed"
            )
        deadline = time.monotonic() + _ENDING_SECONDS
        while running := session.other_sessions(starting=sessions(settings.name), but=sessions(settings.name, own)):
            if time.monotonic() > deadline:
                raise OtherReader(
                    f"the tail {settings.name!r} still runs: it has {running} open sessions in the database. Stop all "
                    "of its processes first"
                )
            time.sleep(_LOOK_SECONDS)
