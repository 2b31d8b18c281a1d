"""Applies dead records after all, once what kept them from that is mended.

1. The stored offset of the record's partition is locked: capture waits.
2. The partition is read from the record up to the stored offset. Where it has a later record of the same key, that one
   is the row's state, or the reason why there is no row: the dead record is too late, and is taken out.
3. Else it is applied under its guard, and taken out, in one transaction. A record that fails again stays, with the new
   reason.
"""

import enum
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from psycopg import Connection

from thresher.capture.applying import apply_by_halves
from thresher.capture.problem import CaptureRefused
from thresher.capture.reader import TopicsReader
from thresher.capture.record import CapturedRecord, Flaw
from thresher.capture.rows.mapping import Mapper
from thresher.capture.settings import CaptureSettings
from thresher.capture.store.dead import DeadRecord, DeadRecords
from thresher.capture.store.entity_table import entity_table
from thresher.capture.store.offsets import StoredOffsets
from thresher.capture.store.tables import visitor
from thresher.capture.targets import Target, mapper_of, targets_of
from thresher.db.postgres.sessions import connect, explained
from thresher.kafka.problem import BrokerLost

_POLL_SECONDS, _SILENT_SECONDS = 0.2, 30.0


class Outcome(enum.StrEnum):
    """What became of a dead record."""

    APPLIED = "applied"
    TOO_LATE = "too late"
    FAILED = "failed again"


def retry(settings: CaptureSettings, ids: Sequence[int]) -> dict[int, Outcome]:
    """Apply dead records by their numbers, each in a transaction of its own; one that is gone is absent."""
    with closing(connect(settings.dsn, visitor(settings.name, "retry"))) as connection, explained():
        found = DeadRecords(connection, settings.tables, settings.name).list(ids=ids)
        names = {each.record.topic for each in found}
        if strange := names - set(settings.topics):
            raise CaptureRefused(f"{', '.join(sorted(strange))}: the configuration has no such topic")
        mappings = [each for each in settings.mappings if each.topic in names]
        targets = targets_of(connection, mappings)
        mappers = {
            each.topic: mapper_of(each, entity_table(connection, each)) for each in mappings if each.table is not None
        }
        return {each.id: _retry(connection, settings, each, targets, mappers) for each in found}


def _retry(
    connection: Connection[Any],
    settings: CaptureSettings,
    dead: DeadRecord,
    targets: Mapping[str, Target],
    mappers: Mapping[str, Mapper],
) -> Outcome:
    record, records = dead.record, DeadRecords(connection, settings.tables, settings.name)
    place = (record.topic, record.partition)
    with connection.transaction():
        stored = StoredOffsets(connection, settings.tables, settings.name).lock([place]).get(place)
        if stored is None or stored.topic_id != dead.topic_id:
            raise CaptureRefused(f"{record.topic} was made anew since: drop record {dead.id}, its order is lost")
        mapper = mappers.get(record.topic)
        if mapper is not None and _has_later(settings, record, stored.next_offset, mapper):
            records.take(dead.id)
            return Outcome.TOO_LATE
        flawed = apply_by_halves(connection, targets[record.topic], [record])
        if flawed:
            records.add(flawed, dead.topic_id)
            return Outcome.FAILED
        records.take(dead.id)
        return Outcome.APPLIED


def _has_later(settings: CaptureSettings, record: CapturedRecord, end: int, mapper: Mapper) -> bool:
    """Whether the partition has a later record of the same key, up to this offset."""
    wanted = mapper.map(record)
    if isinstance(wanted, Flaw):
        return False
    with TopicsReader([record.topic], settings.reader) as reader:
        reader.assign((record.topic, record.partition), record.offset + 1)
        deadline = time.monotonic() + _SILENT_SECONDS
        while reader.positions[record.topic, record.partition] < end:
            for part in reader.poll(_POLL_SECONDS, settings.batch_records):
                deadline = time.monotonic() + _SILENT_SECONDS
                for each in part.records:
                    change = mapper.map(each) if each.offset < end else None
                    if change is not None and not isinstance(change, Flaw) and change.key == wanted.key:
                        return True
            if time.monotonic() > deadline:
                raise BrokerLost(f"{record.topic}/{record.partition} was not read up to {end}")
    return False
