"""Applies dead records again, after the cause of their failure was fixed.

1. Read the partition from the dead record up to the stored offset, and look for a later record of the same key that is
   not dead.
2. Lock the stored offset of the partition, so that capture waits. Read also the records that came meanwhile.
3. If there is a later record, the row has its state, or was deleted by it: remove the dead record as too late.
4. Otherwise apply the dead record under its guard and remove it, in one transaction. If it fails again, it stays, with
   the new reason.
"""

import enum
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from psycopg import Connection

from thresher.capture.applying import apply_by_halves
from thresher.capture.problem import CaptureRefused
from thresher.capture.reader import TopicsReader
from thresher.capture.record import CapturedRecord, Flaw
from thresher.capture.rows.guard import Change
from thresher.capture.rows.mapping import Mapper
from thresher.capture.settings import CaptureSettings, placed_settings
from thresher.capture.store.dead import DeadRecord, DeadRecords
from thresher.capture.store.entity_table import entity_table
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import StoredOffset, StoredOffsets
from thresher.capture.store.tables import HOLDING_SESSION, visitor
from thresher.capture.targets import Target, mapper_of, targets_of
from thresher.db.postgres.sessions import connect
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import BrokerLost

_POLL_SECONDS, _SILENT_SECONDS = 0.2, 30.0


class Outcome(enum.StrEnum):
    """The result for one dead record."""

    APPLIED = "applied"
    TOO_LATE = "too late"
    FAILED = "failed again"


def retry(settings: CaptureSettings, ids: Sequence[int]) -> dict[int, Outcome]:
    """Apply the dead records with these ids, each in a transaction of its own. Records that are gone are left out."""
    settings = placed_settings(settings, visitor(settings.name, "retry"))
    with closing(connect(settings.dsn, visitor(settings.name, "retry"), HOLDING_SESSION)) as connection, explained():
        found = DeadRecords(connection, settings.tables, settings.name).list(ids=ids)
        names = {each.record.topic for each in found}
        if strange := names - set(settings.topics):
            raise CaptureRefused(f"{', '.join(sorted(strange))}: the configuration has no such topic; add it first")
        mappings = [each for each in settings.mappings if each.topic in names]
        targets = targets_of(connection, mappings, handlers_path=settings.handlers_path)
        mappers = {
            each.topic: mapper_of(each, entity_table(connection, each)) for each in mappings if each.table is not None
        }
        records = DeadRecords(connection, settings.tables, settings.name)
        return {
            # One at a time: only the record that is applied is whole.
            each.id: _retry(connection, settings, each, targets, mappers)
            for head in found
            for each in records.list(ids=[head.id], whole=True)
        }


def _retry(
    connection: Connection[Any],
    settings: CaptureSettings,
    dead: DeadRecord,
    targets: Mapping[str, Target],
    mappers: Mapping[str, Mapper],
) -> Outcome:
    record, records = dead.record, DeadRecords(connection, settings.tables, settings.name)
    place = (record.topic, record.partition)
    offsets = StoredOffsets(connection, settings.tables, settings.name)
    later = _Later(settings, dead, mappers.get(record.topic), records.places(record.topic, dead.topic_id))
    later.look(_of_same_topic(dead, offsets.read().get(place)))
    with connection.transaction():
        later.look(_of_same_topic(dead, offsets.lock([place]).get(place)))
        if later.found:
            records.take(dead.id)
            return Outcome.TOO_LATE
        flawed = apply_by_halves(connection, targets[record.topic], [record])
        if flawed:
            records.add(flawed, dead.topic_id)
            return Outcome.FAILED
        records.take(dead.id)
        return Outcome.APPLIED


def _of_same_topic(dead: DeadRecord, stored: StoredOffset | None) -> int:
    if stored is None or stored.topic_id != dead.topic_id:
        raise CaptureRefused(
            f"{dead.record.topic} was deleted and created again since record {dead.id} was captured, so that its order "
            f"is not known: 'thresher capture dead drop {dead.id}'"
        )
    return stored.next_offset


class _Later:
    """Finds out whether the partition has a later record of the same key that is not dead itself."""

    def __init__(
        self,
        settings: CaptureSettings,
        dead: DeadRecord,
        mapper: Mapper | None,
        passed_over: Collection[tuple[int, int]],
    ) -> None:
        """Without a mapper nothing is searched: only the handler knows the keys of its records."""
        self._settings, self._dead, self._mapper, self._passed_over = settings, dead, mapper, passed_over
        self._wanted = None if mapper is None else mapper.map(dead.record)
        self._position = dead.record.offset + 1
        self.found = False

    def look(self, end: int) -> None:
        """Search on up to this offset, unless one is found. Raises `CaptureRefused` if those records are gone."""
        if self._mapper is None or self._wanted is None or isinstance(self._wanted, Flaw):
            return
        record = self._dead.record
        place = (record.topic, record.partition)
        try:
            with TopicsReader([record.topic], self._settings.reader) as reader:
                reader.assign(place, self._position)
                deadline = time.monotonic() + _SILENT_SECONDS
                while not self.found and reader.positions[place] < end:
                    for part in reader.poll(_POLL_SECONDS, self._settings.batch_records):
                        deadline = time.monotonic() + _SILENT_SECONDS
                        self.found = self.found or any(map(self._is_later, part.records))
                    if time.monotonic() > deadline:
                        raise BrokerLost(
                            f"{record.topic}/{record.partition} was not read up to offset {end}: nothing came for "
                            f"{_SILENT_SECONDS:.0f} seconds"
                        )
                self._position = reader.positions[place]
        except PositionLost as error:
            raise CaptureRefused(
                f"{record.topic}/{record.partition} does not have the records after offset {record.offset} any more: "
                "it is not known whether a later one has replaced this. Run 'thresher capture dead drop "
                f"{self._dead.id}', and publish the record again if it is still valid"
            ) from error

    def _is_later(self, record: CapturedRecord) -> bool:
        if self._mapper is None or (record.partition, record.offset) in self._passed_over:
            return False
        change = self._mapper.map(record)
        return isinstance(change, Change) and isinstance(self._wanted, Change) and change.key == self._wanted.key
