"""Lets a capture continue although its stored offsets are not in the topic any more: an operator has decided so.

In one database transaction, for each partition:
1. A topic that was created again begins at its first record, and so does one that was never captured.
2. A partition whose next records or whose stored offset were removed begins at its first record, too.
3. A partition that ends before its stored offset continues at its end.
4. Guards that belong to another topic are cleared, so that any record may overwrite such a row.
"""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from thresher.capture.record import Place
from thresher.capture.rows.mapping import TopicMapping
from thresher.capture.settings import CaptureSettings, placed_settings
from thresher.capture.start_offsets import current_ends, facts_of
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import Stored, StoredOffset, StoredOffsets
from thresher.capture.store.schema import require_schema
from thresher.capture.store.tables import HOLDING_SESSION, parameter_safe, visitor
from thresher.db import statement
from thresher.db.names import quoted_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import connect
from thresher.kafka.admin import Admin
from thresher.kafka.partition_ends import PartitionEnds

_ANEW, _NEVER = "the topic was deleted and created again", "it was never captured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A change of a partition's stored offset."""

    place: Place
    before: int | None
    # None: the topic does not have this partition any more.
    now: int | None
    why: str


def adopt(settings: CaptureSettings) -> list[Adopted]:
    """Set the stored offsets to offsets that the topics have; return the changes. Raises `PipelineProblem`."""
    admin = Admin.of(settings.kafka)
    changed: list[Adopted] = []
    settings = placed_settings(settings, visitor(settings.name, "adopt"))
    with closing(connect(settings.dsn, visitor(settings.name, "adopt"), HOLDING_SESSION)) as connection, explained():
        require_schema(connection, settings.tables, settings.mappings)
        with connection.transaction():
            offsets = StoredOffsets(connection, settings.tables, settings.name)
            stored = offsets.take()
            facts = facts_of(admin, settings.topics)
            for mapping in settings.mappings:
                fact = facts[mapping.topic]
                # A broker that was cut off may report old end offsets: these must not look like lost records.
                same = {place: each for place, each in stored.items() if each.topic_id == fact.topic_id}
                ends = current_ends(admin, mapping.topic, range(fact.partitions), same)
                changes = decide(mapping.topic, fact.topic_id, stored, ends)
                for each in changes:
                    _change(connection, offsets, mapping, fact.topic_id, each)
                changed += changes
    return changed


def decide(topic: str, topic_id: str, stored: Stored, ends: Mapping[int, PartitionEnds]) -> list[Adopted]:
    """Return the changes for one topic. Pure."""
    known = {partition: each for (name, partition), each in stored.items() if name == topic}
    changes = []
    for partition in sorted(known | dict(ends)):
        before, end = known.get(partition), ends.get(partition)
        offset = None if before is None else before.next_offset
        place = (topic, partition)
        if end is None:
            changes.append(Adopted(place=place, before=offset, now=None, why="the topic has no such partition"))
        elif before is None:
            if why := _why_begin(partition, known, end):
                changes.append(Adopted(place=place, before=None, now=end.first, why=why))
        elif before.topic_id != topic_id:
            changes.append(Adopted(place=place, before=offset, now=end.first, why=_ANEW))
        elif before.next_offset < end.first:
            changes.append(Adopted(place=place, before=offset, now=end.first, why="its next records are gone"))
        elif before.next_offset > end.high:
            changes.append(Adopted(place=place, before=offset, now=end.high, why="the broker has lost records"))
    return changes


def _why_begin(partition: int, known: Collection[int], end: PartitionEnds) -> str:
    if not known:
        return _NEVER
    if partition < max(known):
        return "its stored offset is gone"
    return "it was added, and records are gone" if end.first > 0 else ""


def _change(
    connection: Connection[Any], offsets: StoredOffsets, mapping: TopicMapping, topic_id: str, change: Adopted
) -> None:
    _, partition = change.place
    if change.now is None:
        offsets.remove(change.place)
    elif change.before is None:
        offsets.begin(change.place, StoredOffset(topic_id, change.now))
    else:
        offsets.set(change.place, StoredOffset(topic_id, change.now))
    never = change.why == _NEVER
    if mapping.table is None or (never and partition > 0):
        # For a new topic, all guards of the table are cleared with its first partition.
        return
    anew = change.now is None or never or change.why == _ANEW
    if anew or (change.before is not None and change.now < change.before):  # type: ignore[operator]
        guard = {name: parameter_safe(quoted_name(column)) for name, column in mapping.guard._asdict().items()}
        forget = statement("capture_guard_forget", mapping.table, **guard)
        OwnCursor(connection).execute(forget, [None if never else partition, 0 if anew else change.now])
