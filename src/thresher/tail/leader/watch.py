"""Looks, every so often, at what somebody else could change under a tail, and keeps the house clean.

1. A control row with another term raises `Superseded`. A progress topic that is gone, was replaced, or would lose
   records raises.
2. How much log the server keeps for the slot: beyond a bound it is an alarm. Beyond the limit, if there is one, the
   tail ends and somebody has to act. A slot that may lose its log soon is an alarm.
3. Progress before the last record is trimmed: the last one says all.
4. Rows of a table that were published are deleted when they are old enough. A transaction that has ended, and whose
   commit the slot was confirmed beyond, has been published whole, if it began after the log was read without a gap.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException

from thresher.core.errors import PipelineProblem, Superseded, ThresherError
from thresher.db.lsn import lsn_text
from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.db.postgres.replication.tailed_table import FAR_SECONDS, TailedTable
from thresher.db.postgres.sessions import explained
from thresher.db.postgres.store import PostgresSession
from thresher.delivery.leader.control_row import require_known_system
from thresher.delivery.names import sessions
from thresher.delivery.progress_topic.topic import known_topic, require_kept
from thresher.kafka.admin import Admin
from thresher.service.workload import Look
from thresher.tail.leader.figures import LogBoard, LogFigures
from thresher.tail.leader.take_over import driver_store_of
from thresher.tail.problem import LogLost
from thresher.tail.settings import TailMandate, Via

logger = logging.getLogger(__name__)

# How long the database may take to answer a look.
_LOOK_SECONDS = 10.0
_SLOT_SECONDS, _TOPIC_SECONDS, _POLICY_SECONDS, _TRIM_SECONDS = 2.0, 5.0, 20.0, 60.0
# Rows are deleted in steps of so many, for so long at a time: other looks wait meanwhile.
_DELETE_SECONDS, _DELETE_ROWS, _DELETING_SECONDS = 1.0, 10_000, 1.0
_FIRST_ID = -(2**63)


class TailWatch:
    """Looks over a connection of its own, which is made again when it is lost. For one thread."""

    def __init__(self, mandate: TailMandate, board: LogBoard) -> None:
        self._mandate, self._board = mandate, board
        self._session: PostgresSession | None = None
        self._admin = Admin.of(mandate.settings.kafka)
        # What somebody should look at. Replaced as a whole.
        self.alarms: dict[str, str] = {}
        # A transaction, and the position that all older ones' commits lie before.
        self._mark: tuple[str, int] | None = None
        # Up to which id rows have to stay, and until when that is believed.
        self._floor, self._floor_until = _FIRST_ID, 0.0
        self._trimmed = 0

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks, in order."""
        looks = [
            Look(at="database", run=self.look_at_row),
            Look(at="database", run=self.look_at_slot, every_seconds=_SLOT_SECONDS),
            Look(at="broker", run=self.look_at_topic, every_seconds=_TOPIC_SECONDS),
            Look(at="broker", run=self.look_at_policy, every_seconds=_POLICY_SECONDS),
            Look(at="progress", run=self.trim, every_seconds=_TRIM_SECONDS),
        ]
        settings = self._mandate.settings
        if settings.via is Via.TABLE and settings.keep_seconds is not None:
            looks.append(Look(at="database", run=self.delete_old, every_seconds=_DELETE_SECONDS))
        return tuple(looks)

    def look_at_row(self) -> None:
        """Raise `Superseded` if the term is not ours any more."""
        with self._asking() as session:
            row = session.control.read(self._mandate.settings.name)
        if row is None or row.term != self._mandate.term:
            raise Superseded("a newer tail of the same name has taken over; this one ends")

    def look_at_slot(self) -> None:
        """Note how much log is kept for the slot; raise `LogLost` if that is more than the limit.

        A slot that is gone is noticed by whoever reads it.
        """
        settings = self._mandate.settings
        with self._asking() as session:
            row, system_id = session.control.read(settings.name), session.incarnation().system_id
            if row is not None:
                require_known_system(settings.name, row, system_id)
            slot = PostgresSlots(session.connection).slot(settings.slot_name)
            with explained():
                dead = session.dead_rows.count()
        kept = None if slot is None else slot.retained_bytes
        self._board.figures = LogFigures(
            retained_bytes=kept,
            confirmed=None if slot is None else slot.confirmed,
            wal_status=None if slot is None else slot.wal_status,
            dead_rows=dead,
            trimmed=self._trimmed,
        )
        alarms = {}
        if slot is not None and slot.wal_status == "unreserved":
            alarms["slot"] = "the log that the slot needs may be removed at the next checkpoint"
        if kept is not None and kept > settings.retained_alarm_bytes:
            alarms["retained log"] = f"the server keeps {kept:,} bytes of log for slot {settings.slot_name}"
        for what, why in alarms.items():
            if what not in self.alarms:
                logger.warning("%s: %s", what, why, extra={"tail": settings.name})
        self.alarms = alarms
        limit = settings.retained_limit_bytes
        if slot is not None and kept is not None and limit is not None and kept > limit:
            raise LogLost(
                f"the server keeps {kept:,} bytes of log for slot {settings.slot_name}, and retained_limit_bytes is "
                f"{limit:,}: nothing is lost yet. Find out what waits (since {lsn_text(slot.confirmed or 0)}), raise "
                "the limit and start again; or drop the slot, and what was not published: 'thresher tail slot drop'"
            )

    def look_at_topic(self) -> None:
        """Raise `ForeignProgress` if the progress topic is gone, or is another one."""
        source = self._mandate.settings.progress
        known_topic(self._admin, source.topic, self._mandate.progress_topic_id, pipeline=source.pipeline)

    def look_at_policy(self) -> None:
        """Raise `BrokerRefused` if the broker would remove progress by itself."""
        require_kept(self._admin, self._mandate.settings.progress.topic)

    def trim(self) -> None:
        """Remove progress before the last record."""
        mandate, source = self._mandate, self._mandate.settings.progress
        try:
            with source.log(source.seal(mandate.secret, 0), mandate.outbox_id) as log:
                log.last()
            if log.place is not None and log.place.appended_ms is not None:
                self._admin.trim(source.topic, {0: log.place.offset}, log.place.appended_ms)
        except (KafkaException, ThresherError) as error:
            logger.debug("old progress was not trimmed: %s", error)

    def delete_old(self) -> None:
        """Delete published rows after their time, in steps; a mark is used once the slot was confirmed beyond it."""
        settings, figures, first_xid = self._mandate.settings, self._board.figures, self._board.first_xid
        if first_xid is None:
            return
        with self._asking() as session:
            table = TailedTable(session.connection, settings.outbox, settings.shape)
            if self._mark is None:
                self._mark = table.mark()
            confirmed = 0 if figures is None else figures.confirmed or 0
            if confirmed >= self._mark[1] and self._delete_before(self._mark[0], first_xid, table):
                self._mark = None

    def _delete_before(self, xid: str, first_xid: int, table: TailedTable) -> bool:
        """Delete what is due; return whether nothing is left to delete."""
        deadline = time.monotonic() + _DELETING_SECONDS
        while time.monotonic() < deadline:
            if time.monotonic() > self._floor_until:
                self._floor, self._floor_until = _FIRST_ID, time.monotonic() + FAR_SECONDS
            floor = self._floor
            done = table.trim(
                xid,
                first_xid=first_xid,
                keep_seconds=self._mandate.settings.keep_seconds or 0.0,
                rows=_DELETE_ROWS,
                floor=floor,
            )
            self._trimmed += done.deleted
            self._floor = done.floor
            if done.looked < _DELETE_ROWS or (not done.deleted and done.floor == floor):
                return True
        return False

    def close(self) -> None:
        """Let go of the connection."""
        if self._session is not None:
            self._session.close()
        self._session = None

    @contextmanager
    def _asking(self) -> Iterator[PostgresSession]:
        """Give a session; one that met a problem is not used again."""
        settings = self._mandate.settings
        try:
            if self._session is None:
                store = driver_store_of(settings, _LOOK_SECONDS)
                self._session = store.session(f"{sessions(settings.name, self._mandate.term)}/w")
            yield self._session
        except PipelineProblem:
            self.close()
            raise
