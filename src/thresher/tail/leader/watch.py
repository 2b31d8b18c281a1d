"""The leader's periodic checks of what others could change under a tail, and its clean-up.

1. A control row with another term raises `Superseded`. A progress topic that is gone, was replaced, or would lose
   records raises an error.
2. Log kept for the slot beyond `retained_alarm_bytes` raises an alarm; beyond `retained_limit_bytes`, the tail ends. A
   slot that may lose its WAL soon raises an alarm.
3. Progress before the last record is trimmed: records are cumulative.
4. Published rows are deleted from the table once they are old enough. A row was published if its transaction began
   after the WAL was first read without a gap, and the slot is confirmed beyond its commit.
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
from thresher.service.workload import PeriodicCheck
from thresher.tail.leader.figures import LatestLogFigures, LogFigures, slot_alarms
from thresher.tail.leader.take_over import driver_store_of
from thresher.tail.problem import LogLost
from thresher.tail.settings import TailAssignment, Via

logger = logging.getLogger(__name__)

# The time-out for the database's answer to a check.
_LOOK_SECONDS = 10.0
_SLOT_SECONDS, _TOPIC_SECONDS, _POLICY_SECONDS, _TRIM_SECONDS = 2.0, 5.0, 20.0, 60.0
# Deleting: the time between two runs, the rows of a step, and the most time of a run, since other checks wait for it.
_DELETE_SECONDS, _DELETE_ROWS, _DELETING_SECONDS = 1.0, 10_000, 1.0
_FIRST_ID = -(2**63)


class TailWatch:
    """Runs the checks over a connection of its own, and reconnects when it is lost. For one thread."""

    def __init__(self, assignment: TailAssignment, board: LatestLogFigures) -> None:
        self._assignment, self._board = assignment, board
        self._session: PostgresSession | None = None
        self._admin = Admin.of(assignment.settings.kafka)
        # Alarm → its text. Replaced as a whole.
        self.alarms: dict[str, str] = {}
        # A transaction id, and a position of the WAL after the commits of all older transactions.
        self._mark: tuple[str, int] | None = None
        # Rows up to this id cannot be deleted yet, and the time until when that is assumed.
        self._floor, self._floor_until = _FIRST_ID, 0.0
        self._trimmed = 0

    @property
    def checks(self) -> tuple[PeriodicCheck, ...]:
        """The checks, in order."""
        checks = [
            PeriodicCheck(at="database", run=self.check_row),
            PeriodicCheck(at="database", run=self.check_slot, every_seconds=_SLOT_SECONDS),
            PeriodicCheck(at="broker", run=self.check_topic, every_seconds=_TOPIC_SECONDS),
            PeriodicCheck(at="broker", run=self.check_policy, every_seconds=_POLICY_SECONDS),
            PeriodicCheck(at="progress", run=self.trim, every_seconds=_TRIM_SECONDS),
        ]
        settings = self._assignment.settings
        if settings.via is Via.TABLE and settings.keep_seconds is not None:
            checks.append(PeriodicCheck(at="database", run=self.delete_old, every_seconds=_DELETE_SECONDS))
        return tuple(checks)

    def check_row(self) -> None:
        """Raise `Superseded` if the control row has another term."""
        with self._asking() as session:
            row = session.control.read(self._assignment.settings.name)
        if row is None or row.term != self._assignment.term:
            raise Superseded("a newer tail of the same name has taken over; this one ends")

    def check_slot(self) -> None:
        """Update the figures and alarms of the slot. Raise `LogLost` if more WAL is kept than the limit allows.

        A missing slot is not an error here: the shard that reads it fails.
        """
        settings = self._assignment.settings
        with self._asking() as session:
            row, system_id = session.control.read(settings.name), session.incarnation().system_id
            if row is not None:
                require_known_system(settings.name, row, system_id)
            slot = PostgresSlots(session.connection).slot(settings.slot_name)
            with explained():
                dead = session.dead_rows.count()
        kept = None if slot is None else slot.retained_bytes
        self._board.figures = figures = LogFigures(
            retained_bytes=kept,
            confirmed=None if slot is None else slot.confirmed,
            wal_status=None if slot is None else slot.wal_status,
            dead_rows=dead,
            trimmed=self._trimmed,
        )
        alarms = slot_alarms(figures, settings.slot_name, most_bytes=settings.retained_alarm_bytes)
        for what, why in alarms.items():
            if what not in self.alarms:
                logger.warning("%s: %s", what, why, extra={"tail": settings.name})
        self.alarms = alarms
        limit = settings.retained_limit_bytes
        if slot is not None and kept is not None and limit is not None and kept > limit:
            raise LogLost(
                f"the server keeps {kept:,} bytes of WAL for slot {settings.slot_name}, and retained_limit_bytes is "
                f"{limit:,}: nothing is lost yet. Find out why the slot stays at {lsn_text(slot.confirmed or 0)}, "
                "raise the limit and start again; or give up what was not published: 'thresher tail slot drop'"
            )

    def check_topic(self) -> None:
        """Raise `ForeignProgress` if the progress topic is gone or was replaced."""
        source = self._assignment.settings.progress
        known_topic(self._admin, source.topic, self._assignment.progress_topic_id, pipeline=source.pipeline)

    def check_policy(self) -> None:
        """Raise `BrokerRefused` if the topic's configuration lets the broker remove progress records."""
        require_kept(self._admin, self._assignment.settings.progress.topic)

    def trim(self) -> None:
        """Delete the progress records before the last one."""
        assignment, source = self._assignment, self._assignment.settings.progress
        try:
            with source.log(source.seal(assignment.secret, 0)) as log:
                log.last()
            if log.place is not None and log.place.appended_ms is not None:
                self._admin.trim(source.topic, {0: log.place.offset}, log.place.appended_ms)
        except (KafkaException, ThresherError) as error:
            logger.debug("old progress was not trimmed: %s", error)

    def delete_old(self) -> None:
        """Delete published rows after `keep_seconds`, in steps.

        A mark is a transaction id with a position. Once the slot is confirmed there, older transactions are published.
        """
        settings, figures, first_xid = self._assignment.settings, self._board.figures, self._board.first_xid
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
        """Delete the rows that are due; return whether none is left to delete."""
        deadline = time.monotonic() + _DELETING_SECONDS
        while time.monotonic() < deadline:
            if time.monotonic() > self._floor_until:
                self._floor, self._floor_until = _FIRST_ID, time.monotonic() + FAR_SECONDS
            floor = self._floor
            done = table.trim(
                xid,
                first_xid=first_xid,
                keep_seconds=self._assignment.settings.keep_seconds or 0.0,
                rows=_DELETE_ROWS,
                floor=floor,
            )
            self._trimmed += done.deleted
            self._floor = done.floor
            if done.looked < _DELETE_ROWS or (not done.deleted and done.floor == floor):
                return True
        return False

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
        self._session = None

    @contextmanager
    def _asking(self) -> Iterator[PostgresSession]:
        """Give the session. After a problem it is closed, and the next check connects again."""
        settings = self._assignment.settings
        try:
            if self._session is None:
                store = driver_store_of(settings, _LOOK_SECONDS)
                self._session = store.session(f"{sessions(settings.name, self._assignment.term)}/w")
            yield self._session
        except PipelineProblem:
            self.close()
            raise
