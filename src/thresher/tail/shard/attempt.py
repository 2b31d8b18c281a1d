"""One attempt of a tail's shard: its sessions, stream, producer and threads, put together.

Everything that an attempt opens is closed when it ends. A crash leaves at most a session that still reads the slot, and
an open Kafka transaction. The successor ends the session, and its `init_transactions` aborts the transaction.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from thresher.core.errors import Superseded
from thresher.core.secrets import revealed
from thresher.db.control import TAIL
from thresher.db.log_emitter import LogKey
from thresher.db.postgres.replication.connection import ReplicationConnection, SystemIdentity
from thresher.db.postgres.replication.dead_changes import DeadChanges
from thresher.db.postgres.replication.emitter import PostgresEmitter
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.sessions import connect_within
from thresher.db.postgres.store import PostgresStore
from thresher.db.waits import Waits
from thresher.delivery.batch import Batch, NothingYet
from thresher.delivery.crash_points import CrashPoints
from thresher.delivery.effects import Handlers, Recovered
from thresher.delivery.names import shard_sessions
from thresher.delivery.progress_topic.topic import progress_limit
from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.shard.flow import Flow
from thresher.delivery.shard.in_flight import IN_FLIGHT_KEYS
from thresher.delivery.shard.keeping_waits import WaitKeeper
from thresher.delivery.shard.meter import Meter
from thresher.delivery.shard.producer_factory import make_producer
from thresher.delivery.shard.recovery import Recovery
from thresher.delivery.shard.taking import Taking
from thresher.delivery.shard_producer import ProgressTopic, ShardProducer
from thresher.delivery.transaction import Transactions
from thresher.kafka.admin import Admin
from thresher.kafka.transactional import TransactionalProducer
from thresher.spark.worker.shard import Shard
from thresher.tail.buffer import DeadChange, LogBuffer
from thresher.tail.coverage import Coverage
from thresher.tail.log_seal import LogKeys
from thresher.tail.log_source import TableSource
from thresher.tail.log_state import LogState, Missing, judged, require_unchanged, what_to_do
from thresher.tail.problem import LogLost
from thresher.tail.progress import TailBook, TailProgress, batch_rows, bounded, encode
from thresher.tail.settings import TailAssignment
from thresher.tail.shard.buffered_log import BufferedLog
from thresher.tail.shard.settling import TailSettling
from thresher.tail.shard.span_watch import SpanWatch
from thresher.tail.slot import LogUnreadable, free_slot, require_readable
from thresher.tail.stream import LogStream

# The time-out of the query for keys: the server ends a stream whose reader is silent for a minute.
_KEYS_SECONDS = 10.0


class TailAttempt:
    """Puts the parts of one attempt together. For the task's own thread, unless a method says otherwise."""

    def __init__(self, shard: Shard, assignment: TailAssignment) -> None:
        settings = assignment.settings
        self._shard, self._assignment = shard, assignment
        store = PostgresStore(settings.dsn, settings.beside, settings.shape)
        self._session = shard.enter(closing(store.session(self._application)))
        # A second session, for the reader's thread: a connection serves one thread at a time.
        self._reading = shard.enter(closing(store.session(self._application)))
        admin = Admin.of(settings.kafka)
        self._crash = CrashPoints(assignment.hook, shard.index)
        meter = Meter(shard, report=shard.event)
        shard.note(IN_FLIGHT_KEYS, meter.in_flight.keys)
        source = settings.progress
        most_bytes = progress_limit(admin, source.topic, settings.properties)
        limits = settings.limits
        self.buffer = LogBuffer(bounded(settings.bounds, most_bytes))
        self.buffer.cover(Coverage(noted=assignment.confirmed))
        rows = batch_rows(limits.batch_rows, most_bytes)
        self.ahead = ReadAhead(ReadAheadLimits(most_rows=rows, most_bytes=limits.batch_bytes))
        self._watch = SpanWatch(
            assignment, PostgresSlots(self._session.connection), lambda xid: shard.event("log read", first_xid=xid)
        )
        self.book = TailBook(
            buffer=self.buffer,
            outbox_id=assignment.outbox_id,
            term=assignment.term,
            timeline=lambda: self._identified()[0].timeline,
            most_bytes=most_bytes,
            span=self._watch.span,
        )
        seal = source.seal(assignment.secret, shard.index)
        progress = ProgressTopic(topic=seal.topic, partition=shard.index, encode=encode, headers=seal.headers)
        shard_producer = ShardProducer(
            self._producer,
            claimant=str(uuid.uuid4()),
            admin=admin,
            progress=progress,
            batch_bytes=int(revealed(settings.producer.get("batch.size", 1_000_000))),
        )
        self._transactions = Transactions(
            shard_producer=shard_producer,
            admin=admin,
            progress=progress,
            observer=meter,
            crash=self._crash,
            lenient=False,
            ahead=not settings.transforms,
            wanted=lambda: self.ahead.ready,
        )
        self._settling = TailSettling(
            shard,
            self.buffer,
            self.ahead,
            meter,
            self._crash,
            set_aside=self._set_aside_with(self._session),
            adopt=self._covered,
            confirm=self._confirm,
        )
        self._recovery = Recovery(
            shard, assignment.known_progress, self._session, admin, self._transactions, seal, self._crash, meter
        )
        # Opened by the reader's thread after recovery.
        self.stream: LogStream | None = None
        self._state: LogState | None = None
        # The system and timeline of the WAL, and where earlier timelines ended.
        self._identity: tuple[SystemIdentity, list[tuple[int, int]]] | None = None

    @property
    def _application(self) -> str:
        return shard_sessions(self._assignment.settings.name, self._assignment.term, self._shard.index)

    def handlers(self, batches: Iterator[Batch | NothingYet]) -> Handlers:
        """Return the handler of each effect of the protocol."""
        taking = Taking(
            self._shard,
            self.ahead,
            batches,
            self._crash,
            batch_seconds=self._assignment.settings.limits.batch_seconds,
            check=self._settling.settler.check,
        )
        waits = WaitKeeper(
            self._session.waits,
            self._assignment.settings.name,
            self._shard.index,
            term=self._assignment.term,
            settled=self._settling.settler.wait,
        )
        return Flow(self._shard, self.ahead, blocked_seconds=lambda: self.buffer.blocked_seconds).watched(
            {
                **self._recovery.handlers,
                **self._transactions.handlers,
                **self._settling.handlers,
                **waits.handlers,
                **taking.handlers,
                Recovered: self._recovered,
            }
        )

    def open_source(self) -> BufferedLog:
        """Open the stream of the WAL. For the reader's thread, after recovery."""
        settings = self._assignment.settings
        state = self._log_state()
        free_slot(PostgresSlots(self._reading.connection), settings.slot_name)
        source = settings.source
        if isinstance(source, TableSource):
            source = replace(source, number=self._assignment.span.table)
        stream = LogStream(
            settings.dsn,
            application=self._application,
            slot=settings.slot_name,
            publication=settings.publication_name,
            source=source,
            keys=None if isinstance(source, TableSource) else self._log_keys(),
        )
        try:
            # While the stream is open, nobody else can advance or drop the slot.
            slot = PostgresSlots(self._reading.connection).slot(settings.slot_name)
            confirmed = require_unchanged(state, stream.identity, slot, self.buffer.coverage.noted)
            self._watch.begin(confirmed)
            self.buffer.begin_at(confirmed)
        except BaseException:
            stream.close()
            raise
        self.stream = stream
        write = self._set_aside_with(self._reading)
        return BufferedLog(
            stream, self.buffer, lambda dead: write(dead, lambda: None), columns=bool(settings.transforms)
        )  # fmt: skip

    def show(self) -> None:
        """Update the gauges: how much is read ahead, and how long the oldest change has waited."""
        self._shard.gauge("buffered_rows", self.buffer.rows)
        self._shard.gauge("buffered_bytes", self.buffer.bytes)
        oldest, clock = self.buffer.oldest_us, self._transactions.clock
        waits = 0 if oldest is None or clock is None else max(0, clock.now_us() - oldest)
        self._shard.gauge("lag_seconds", waits / 1_000_000)

    def _log_keys(self) -> LogKeys:
        """Return the keys of messages, over a session of the stream's thread that is opened for the first message."""
        settings = self._assignment.settings

        def read() -> tuple[int, Mapping[int, LogKey]]:
            with closing(connect_within(_KEYS_SECONDS)(settings.dsn, self._application)) as connection:
                return PostgresEmitter(connection, settings.beside).keys()

        return LogKeys(read)

    def _recovered(self, effect: Recovered) -> Waits:
        assignment, settings = self._assignment, self._assignment.settings
        # Only after this term's first record: without that record, a successor would report changes as missing that an
        # operator has accepted.
        if assignment.adopted and not self._session.control.lay_out(
            settings.name, term=assignment.term, mode=TAIL, shards=1, progress_topic_id=assignment.progress_topic_id
        ):
            raise Superseded("a newer tail of the same name has taken over; this one ends")
        # A row has another number in each attempt.
        return Waits(topics=self._recovery.handlers[Recovered](effect).topics)

    def _covered(self, progress: TailProgress) -> Coverage:
        """Return the coverage of a record that recovery found. Raises `LogLost` if the WAL has a gap behind it."""
        if self.book.wrote(progress):
            return progress.coverage
        assignment, settings, state = self._assignment, self._assignment.settings, self._log_state(progress)
        # Adoption covers what was missing before it. Once this term has a record, anything missing is new.
        accepted = assignment.adopted and progress.origin.term != assignment.term
        found = judged(progress.origin, progress.coverage, state, accepted=accepted)
        if isinstance(found, Missing):
            row = self._session.control.read(settings.name)
            if row is None or row.term != assignment.term:
                # The newer tail may have confirmed the slot further than this attempt knows: not a loss.
                raise Superseded("a newer tail of the same name has taken over; this one ends")
            what = what_to_do(progress.coverage, settings.source, settings.name)
            raise LogLost(f"committed rows may be missing: {found.why}. {what}")
        if not accepted:
            self._watch.go_on(progress.span, state)
        return found

    def _log_state(self, progress: TailProgress | None = None) -> LogState:
        """Return the state of the WAL before it is read. Raises `LogLost` if the slot is gone."""
        if self._state is not None:
            return self._state
        settings = self._assignment.settings
        slots = PostgresSlots(self._session.connection)
        # In this order: a change of the publication after the first query is noticed.
        published = slots.published(settings.publication_name, settings.table)
        try:
            slot = require_readable(slots, settings.slot_name, settings.publication_name, settings.source)
        except LogUnreadable as error:
            found = slots.slot(settings.slot_name)
            if progress is None or (found is not None and not found.lost):
                raise
            what = what_to_do(progress.coverage, settings.source, settings.name)
            raise LogLost(f"{error}. {what}") from error
        now, left = self._identified()
        self._state = LogState(
            system_id=now.system_id,
            timeline=now.timeline,
            end=now.position,
            left=left,
            confirmed=slot.confirmed or 0,
            published=published,
        )
        return self._state

    def _identified(self) -> tuple[SystemIdentity, list[tuple[int, int]]]:
        if self._identity is None:
            with closing(ReplicationConnection(self._assignment.settings.dsn, self._application)) as connection:
                now = connection.identify()
                left = [(each.timeline, each.end) for each in connection.timeline_ends(now.timeline)]
            self._identity = now, left
        return self._identity

    def _confirm(self, lsn: int) -> None:
        """Confirm the slot. Raises `LogLost` if the publication may have left out inserts before this position."""
        if self.stream is not None:
            self._watch.require_published(lsn)
            self.stream.confirm(lsn)

    def _set_aside_with(self, session: object) -> Callable[[Sequence[DeadChange], Callable[[], None]], None]:
        settings = self._assignment.settings
        in_table = isinstance(settings.source, TableSource)
        connection = session.connection  # type: ignore[attr-defined]
        writer = DeadChanges(connection, settings.beside, settings.shape, in_table=in_table)

        def write(dead: Sequence[DeadChange], middle: Callable[[], None]) -> None:
            writer.set_aside([(each.row, tuple(each.fate)) for each in dead], middle)  # type: ignore[misc]

        return write

    def _producer(self, id_index: int, more: dict[str, object], /, *, brief: bool = False) -> TransactionalProducer:
        settings = self._assignment.settings
        return make_producer(
            settings.group,
            self._shard.index,
            id_index,
            {**settings.properties, **more},
            factory=settings.producer_factory,
            brief=brief,
        )
