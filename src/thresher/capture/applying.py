"""Applies batches of records, each in one database transaction. The stored offsets are the only fence.

1. Lock the stored offsets of the batch's partitions. A suspended process that resumes, or a second capture, finds them
   moved.
2. Of each part, skip the records below the stored offset. A part that begins beyond the stored offset is not applied.
3. Apply the rest, add flawed records to the dead records, and move the offsets forward. Commit.
4. If the database or a handler refuses the batch, roll back and apply it by halves, each in a savepoint, down to single
   records that fail. These become dead records; the others are applied in their order. Deferred constraints are checked
   once, at the end, since rows of a batch may refer to each other. Only if that check fails, repeat the batch and check
   each half by itself.

Records are mapped before the transaction begins. Topics are applied in the order of the configuration.

After a crash before the commit, nothing of the batch is stored; after the commit, all of it, with its offsets.
"""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Connection

from thresher.capture.positions import Due, Part, Verdict, judge
from thresher.capture.problem import OffsetsMissing, RecordsKeepFailing, topic_changed
from thresher.capture.record import CapturedRecord, FlawedRecord, Place
from thresher.capture.settings import CaptureSettings
from thresher.capture.store.data_errors import flaw_of, may_pass
from thresher.capture.store.dead import DeadRecords
from thresher.capture.store.offsets import Stored, StoredOffsets
from thresher.capture.targets import HandlerFailed, Target
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.kafka.partition_watch import PositionLost

_ATTEMPTS = 5
_CHECK = "SET CONSTRAINTS ALL IMMEDIATE"
_NO_HOOK = CrashPoints(None, 0)


class ApplyMode(enum.Enum):
    """How a batch is applied. Each way is slower than the one before, and finds flawed records more precisely."""

    WHOLE_BATCH = enum.auto()
    HALVES = enum.auto()
    CHECKED_HALVES = enum.auto()


@dataclass(slots=True)
class Applied:
    """The result of a batch: the verdict for each part, and counts by topic."""

    verdicts: dict[Place, Verdict] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)
    # By topic and kind.
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Consecutive dead records at the end of each topic's records.
    failing: dict[str, int] = field(default_factory=dict)


class Applier:
    """Applies the batches of one attempt of a shard, over one connection in autocommit."""

    def __init__(
        self,
        connection: Connection[Any],
        settings: CaptureSettings,
        targets: Mapping[str, Target],
        crash: CrashPoints = _NO_HOOK,
    ) -> None:
        self._connection, self._settings, self._targets, self._crash = connection, settings, targets, crash
        self._offsets = StoredOffsets(connection, settings.tables, settings.name)
        self._dead = DeadRecords(connection, settings.tables, settings.name)
        self._failing: dict[str, int] = {}

    def apply(self, parts: Sequence[Part], topic_ids: Mapping[str, str]) -> Applied:
        """Apply a batch. `topic_ids` has the ids of the topics that it was read from.

        Raises `PositionLost` if a stored offset has another topic id, `RecordsKeepFailing`, `OffsetsMissing`, or
        `psycopg.Error` if the database failed or an operator has to act.
        """
        records = self._in_order(_by_topic({part.place: Due(part.records, part.end) for part in parts}))
        targets = {topic: self._targets[topic].prepared(some) for topic, some in records.items()}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._by_halves_if_needed(parts, topic_ids, targets)
            except psycopg.Error as error:
                if attempt == _ATTEMPTS or not may_pass(error):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _by_halves_if_needed(
        self, parts: Sequence[Part], topic_ids: Mapping[str, str], targets: Mapping[str, Target]
    ) -> Applied:
        for mode in (ApplyMode.WHOLE_BATCH, ApplyMode.HALVES):
            try:
                return self._transact(parts, topic_ids, targets, mode)
            except HandlerFailed:
                pass
            except psycopg.Error as error:
                if flaw_of(error) is None:
                    raise
        return self._transact(parts, topic_ids, targets, ApplyMode.CHECKED_HALVES)

    def _transact(
        self, parts: Sequence[Part], topic_ids: Mapping[str, str], targets: Mapping[str, Target], mode: ApplyMode
    ) -> Applied:
        done = Applied(failing=dict(self._failing))
        with self._connection.transaction():
            stored = self._offsets.lock(part.place for part in parts)
            require_same_topics(parts, stored, topic_ids)
            done.verdicts = {part.place: judge(part, stored[part.place].next_offset) for part in parts}
            for topic, records in self._in_order(_by_topic(done.verdicts)).items():
                flawed = self._apply(targets[topic], records, mode)
                self._account(topic, records, flawed, done)
                self._dead.add(flawed, topic_ids[topic])
            if mode is ApplyMode.HALVES:
                self._connection.execute(_CHECK)
            ends = {place: verdict.end for place, verdict in done.verdicts.items() if isinstance(verdict, Due)}
            if ends:
                self._offsets.move(ends)
            self._crash.reach(CrashPoint.BEFORE_COMMIT, [done.records.total()])
        self._failing = done.failing
        self._crash.reach(CrashPoint.COMMITTED, [done.records.total()])
        return done

    def _apply(self, target: Target, records: Sequence[CapturedRecord], mode: ApplyMode) -> list[FlawedRecord]:
        if mode is ApplyMode.WHOLE_BATCH:
            return target.apply(self._connection, records)
        return apply_by_halves(self._connection, target, records, checked=mode is ApplyMode.CHECKED_HALVES)

    def _account(
        self, topic: str, records: Sequence[CapturedRecord], flawed: Sequence[FlawedRecord], done: Applied
    ) -> None:
        done.records[topic] += len(records)
        most = self._settings.most_dead_in_a_row
        done.failing[topic] = require_some_success(records, flawed, done.failing.get(topic, 0), most)
        for each in flawed:
            done.dead[topic, each.flaw.kind] += 1

    def _in_order(self, records: dict[str, list[CapturedRecord]]) -> dict[str, list[CapturedRecord]]:
        return {topic: records[topic] for topic in self._settings.topics if topic in records}


def require_some_success(
    records: Sequence[CapturedRecord], flawed: Sequence[FlawedRecord], before: int, most: int
) -> int:
    """Return how many records at a topic's end are flawed in a row. `before` is their number before this batch.

    Raises `RecordsKeepFailing` if more than `most` are flawed in a row; 0 allows any number.
    """
    if not flawed:
        return 0
    longest, now = before, before
    places = {(each.record.partition, each.record.offset) for each in flawed}
    for record in records:
        now = now + 1 if (record.partition, record.offset) in places else 0
        longest = max(longest, now)
    if most and longest > most:
        last = flawed[-1]
        raise RecordsKeepFailing(
            last.record.topic,
            f"{longest} records of {last.record.topic} in a row cannot be applied, the last at offset "
            f"{last.record.offset} of partition {last.record.partition}: {last.flaw.reason}",
        )
    return now


def apply_by_halves(
    connection: Connection[Any], target: Target, records: Sequence[CapturedRecord], *, checked: bool = True
) -> list[FlawedRecord]:
    """Apply records in savepoints of the caller's transaction. Return those that cannot be applied.

    With `checked`, deferred constraints are checked at once: a failure at the commit would fail the whole batch.
    """
    try:
        with connection.transaction():
            flawed = target.apply(connection, records)
            if checked:
                connection.execute(_CHECK)
    except HandlerFailed as error:
        flaw = error.flaw
    except psycopg.Error as error:
        found = flaw_of(error)
        if found is None:
            raise
        flaw = found
    else:
        return flawed
    if len(records) == 1:
        return [FlawedRecord(record=records[0], flaw=flaw)]
    middle = len(records) // 2
    return [
        *apply_by_halves(connection, target, records[:middle], checked=checked),
        *apply_by_halves(connection, target, records[middle:], checked=checked),
    ]


def require_same_topics(parts: Sequence[Part], stored: Stored, topic_ids: Mapping[str, str]) -> None:
    """Raise if the stored offset of a part is missing, or is that of an older topic of the same name."""
    for part in parts:
        found = stored.get(part.place)
        if found is None:
            raise OffsetsMissing(f"the stored offset of {part.topic}/{part.partition} was removed")
        if found.topic_id != topic_ids[part.topic]:
            raise PositionLost(topic_changed(part.topic))


def _by_topic(verdicts: Mapping[Place, Verdict]) -> dict[str, list[CapturedRecord]]:
    found: dict[str, list[CapturedRecord]] = {}
    for (topic, _), verdict in verdicts.items():
        if isinstance(verdict, Due) and verdict.records:
            found.setdefault(topic, []).extend(verdict.records)
    return found
