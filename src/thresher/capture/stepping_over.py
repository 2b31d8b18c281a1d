"""Moves the stored offsets of a capture over batches that no client can decompress: an operator has decided so.

A partition stands still before such a batch, because it may hold records. Stepping over it loses these for the capture.
A running capture notices the moved offset, and goes on behind the batch.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from thresher.capture.problem import CaptureRefused
from thresher.capture.record import Place
from thresher.capture.settings import CaptureSettings, placed_settings
from thresher.capture.start_offsets import facts_of
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import StoredOffset, StoredOffsets
from thresher.capture.store.schema import require_schema
from thresher.capture.store.tables import HOLDING_SESSION, visitor
from thresher.db.postgres.sessions import connect
from thresher.kafka.admin import Admin
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.unreadable_batch import Unreadable, unreadable_run


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A partition whose stored offset is before an unreadable batch, or several that follow each other."""

    place: Place
    stored: StoredOffset
    batch: Unreadable


def stuck_partitions(settings: CaptureSettings) -> Iterator[StuckPartition]:
    """Yield where the stored offsets stand before an unreadable batch. Raises `PipelineProblem`."""
    admin = Admin.of(settings.kafka)
    application = visitor(settings.name, "step")
    settings = placed_settings(settings, application)
    with closing(connect(settings.dsn, application, HOLDING_SESSION)) as connection, explained():
        require_schema(connection, settings.tables, settings.mappings)
        stored = StoredOffsets(connection, settings.tables, settings.name).read()
    for topic, fact in facts_of(admin, settings.topics).items():
        ends = partition_ends(admin.client, topic, range(fact.partitions))
        for place, each in sorted(stored.items()):
            end = ends.get(place[1]) if place[0] == topic else None
            if end is None or each.topic_id != fact.topic_id or not end.first <= each.next_offset < end.stable:
                continue
            if (batch := unreadable_run(*place, each.next_offset, end.stable, settings.reader)) is not None:
                yield StuckPartition(place=place, stored=each, batch=batch)


def step_over(settings: CaptureSettings, stuck: StuckPartition) -> None:
    """Move the stored offset behind the batch. Raises `CaptureRefused` if it has moved meanwhile."""
    application = visitor(settings.name, "step")
    settings = placed_settings(settings, application)
    with closing(connect(settings.dsn, application, HOLDING_SESSION)) as connection, explained():
        offsets = StoredOffsets(connection, settings.tables, settings.name)
        with connection.transaction():
            if offsets.lock([stuck.place]).get(stuck.place) != stuck.stored:
                topic, partition = stuck.place
                raise CaptureRefused(f"the stored offset of {topic}/{partition} has moved meanwhile: run it again")
            offsets.set(stuck.place, StoredOffset(stuck.stored.topic_id, stuck.batch.after))
