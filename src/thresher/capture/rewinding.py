"""Applies the newest record of each key again, so that no reader ever sees an older state.

1. Lock the stored offsets, so that capture waits. Each writing transaction also locks them, and stops the rewind if
   they have changed. So even if the first lock is lost, nothing is applied beside a running capture.
2. Read the topics from the beginning, or from a time, up to the stored offsets. Remember the newest record of each key,
   by a digest of the key.
3. Read them once more, and apply the newest records. A row with the same or a later guard is not changed. A tombstone
   deletes its row. Dead records are skipped. A newest record that cannot be applied now is reported, and its row is not
   changed. It is not added to the dead records, since an older record could then take its place.

After a crash, some rows are repaired and the others unchanged. Topics with a handler are left out: they have no guard.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec
from psycopg import Connection

from thresher.capture.applying import apply_by_halves, require_some_success
from thresher.capture.positions import Part
from thresher.capture.problem import CaptureRefused, RewindInterrupted, topic_changed
from thresher.capture.reader import TopicsReader
from thresher.capture.record import CapturedRecord, Flaw, FlawedRecord, Place
from thresher.capture.rows.guard import Guard
from thresher.capture.rows.mapping import Mapper, TopicMapping
from thresher.capture.settings import CaptureSettings, placed_settings
from thresher.capture.start_offsets import facts_of
from thresher.capture.store.dead import DeadRecords
from thresher.capture.store.entity_table import entity_table
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import Stored, StoredOffsets
from thresher.capture.store.schema import require_schema
from thresher.capture.store.tables import HOLDING_SESSION, visitor
from thresher.capture.targets import TableTarget, mapper_of
from thresher.db.postgres.sessions import connect
from thresher.kafka.admin import Admin
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.kafka.unreadable_batch import unreadable_at

_POLL_SECONDS, _SILENT_SECONDS = 0.2, 60.0
_DIGEST_BYTES = 16
_MOST_FAILURES_TOLD = 20


@dataclass(slots=True)
class Rewound:
    """The result: records that were read, their different keys, and newest records that could not be applied."""

    records: int = 0
    keys: int = 0
    failed: int = 0
    # The offsets and reasons of the first failed records.
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    # The batches that no client can decompress: their records were not read.
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The offsets of one topic to read, by partition: from `starts` up to `ends`."""

    topic: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]


def rewind(
    settings: CaptureSettings,
    since_ms: int | None = None,
    *,
    again: bool = False,
    told: Callable[[Rewound], None] = lambda _: None,
) -> Rewound:
    """Apply the newest record of each key since a time, or since the beginning, while capture waits.

    With `again`, rows that were written from the same record are written again: for a changed mapping. Raises
    `CaptureRefused`, `PositionLost`, `RecordsKeepFailing`, `RewindInterrupted`, `DatabaseLost` or `BrokerLost`.
    """
    done = Rewound(left_out=[each.topic for each in settings.mappings if each.handler is not None])
    application = visitor(settings.name, "rewind")
    settings = placed_settings(settings, application)
    with (
        closing(connect(settings.dsn, application, HOLDING_SESSION)) as holding,
        closing(connect(settings.dsn, application, HOLDING_SESSION)) as writing,
        explained(),
        holding.transaction(),
    ):
        require_schema(writing, settings.tables, settings.mappings)
        stored = StoredOffsets(holding, settings.tables, settings.name).hold()
        for mapping in settings.mappings:
            if mapping.table is not None:
                span = _span(settings, mapping.topic, stored, since_ms)
                _Rewinding(settings, mapping, writing, span, stored, again=again).run(done, told)
    return done


class _Rewinding:
    """The rewind of one topic."""

    def __init__(
        self,
        settings: CaptureSettings,
        mapping: TopicMapping,
        connection: Connection[Any],
        span: _Span,
        stored: Stored,
        *,
        again: bool,
    ) -> None:
        self._settings, self._connection, self._span, self._stored = settings, connection, span, stored
        table = entity_table(connection, mapping, again=again)
        self._mapper: Mapper = mapper_of(mapping, table)
        self._target = TableTarget(self._mapper, table)
        self._offsets = StoredOffsets(connection, settings.tables, settings.name)
        dead = DeadRecords(connection, settings.tables, settings.name)
        self._passed_over = dead.places(span.topic, span.topic_id)
        self._failing = 0
        self._unreadable: set[tuple[Place, int, int]] = set()

    def run(self, done: Rewound, told: Callable[[Rewound], None]) -> None:
        newest: dict[bytes, Guard] = {}
        for records in self._records():
            for record in records:
                self._remember(record, newest)
            done.records += len(records)
            told(done)
        done.keys += len(newest)
        chosen = {(guard.partition, guard.offset) for guard in newest.values()}
        newest.clear()
        for records in self._records():
            if due := [each for each in records if (each.partition, each.offset) in chosen]:
                flawed = self._apply(due)
                done.failed += len(flawed)
                left = _MOST_FAILURES_TOLD - len(done.failures)
                done.failures += [_told(each) for each in flawed[:left]]
            told(done)
        done.unreadable += [
            f"{topic}/{partition}: offsets {first} to {after - 1}"
            for (topic, partition), first, after in sorted(self._unreadable)
        ]

    def _remember(self, record: CapturedRecord, newest: dict[bytes, Guard]) -> None:
        if (record.partition, record.offset) in self._passed_over:
            return
        change = self._mapper.map(record)
        if isinstance(change, Flaw):
            return
        key = _digest(change.key)
        before = newest.get(key)
        if before is None or change.guard.after(before):
            newest[key] = change.guard if before is None else change.guard.following(before)

    def _apply(self, records: Sequence[CapturedRecord]) -> list[FlawedRecord]:
        with self._connection.transaction():
            if self._offsets.hold() != self._stored:
                raise RewindInterrupted(
                    f"capture {self._settings.name} continued while {self._span.topic} was rewound: the connection "
                    "that held the lock was lost. All applied rows are correct; run the rewind again for the rest"
                )
            flawed = apply_by_halves(self._connection, self._target, records)
            self._failing = require_some_success(records, flawed, self._failing, self._settings.most_dead_in_a_row)
        return flawed

    def _records(self) -> Iterator[list[CapturedRecord]]:
        """Yield all committed records of the span, in order within each partition."""
        span = self._span
        left = {partition for partition, start in span.starts.items() if start < span.ends[partition]}
        with TopicsReader([span.topic], self._settings.reader) as reader:
            for partition in left:
                reader.assign((span.topic, partition), span.starts[partition])
            deadline = time.monotonic() + _SILENT_SECONDS
            while left:
                parts = reader.poll(_POLL_SECONDS, self._settings.batch_records)
                if parts:
                    deadline = time.monotonic() + _SILENT_SECONDS
                elif time.monotonic() > deadline:
                    raise BrokerLost(f"{span.topic} was not read up to its stored offsets: nothing came for a minute")
                self._step_over(reader)
                yield [record for part in parts if part.partition in left for record in self._within(part)]
                left -= {part.partition for part in parts if part.end >= span.ends[part.partition]}

    def _step_over(self, reader: TopicsReader) -> None:
        """Read on behind unreadable batches: those before the stored offsets were stepped over by an operator."""
        for place in list(reader.unreadable):
            batch = unreadable_at(*place, reader.positions[place], self._settings.reader)
            if batch is not None:
                self._unreadable.add((place, batch.first, batch.after))
                reader.assign(place, batch.after)

    def _within(self, part: Part) -> Sequence[CapturedRecord]:
        end = self._span.ends[part.partition]
        return part.records if part.end <= end else [each for each in part.records if each.offset < end]


def _told(flawed: FlawedRecord) -> str:
    record = flawed.record
    return f"{record.topic}/{record.partition}/{record.offset}: {flawed.flaw.reason}"


def _digest(key: Sequence[bytes]) -> bytes:
    whole = b"".join(b"%d:%s" % (len(part), part) for part in key)
    return hashlib.blake2b(whole, digest_size=_DIGEST_BYTES).digest()


def _span(settings: CaptureSettings, topic: str, stored: Stored, since_ms: int | None) -> _Span:
    ends = {partition: each.next_offset for (name, partition), each in stored.items() if name == topic}
    if not ends:
        raise CaptureRefused(f"{topic} was never captured by {settings.name}: there is nothing to rewind")
    admin = Admin.of(settings.kafka)
    topic_id = facts_of(admin, [topic])[topic].topic_id
    if any(stored[topic, partition].topic_id != topic_id for partition in ends):
        raise PositionLost(topic_changed(topic))
    first = {partition: each.first for partition, each in partition_ends(admin.client, topic, ends).items()}
    starts = first if since_ms is None else _since(admin, topic, ends, since_ms)
    return _Span(topic=topic, topic_id=topic_id, starts=starts, ends=ends)


def _since(admin: Admin, topic: str, ends: Mapping[int, int], since_ms: int) -> dict[int, int]:
    """Return the first offset of each partition whose record is not older than the time; the end if there is none."""
    asked = {TopicPartition(topic, partition): OffsetSpec.for_timestamp(since_ms) for partition in ends}
    found: dict[int, int] = {}
    for place, answer in admin.client.list_offsets(asked, request_timeout=15.0).items():
        try:
            offset = answer.result().offset
        except KafkaException as error:
            raise broker_problem(f"the offsets of {topic} at that time could not be read", error.args[0]) from error
        found[place.partition] = ends[place.partition] if offset < 0 else offset
    return found
