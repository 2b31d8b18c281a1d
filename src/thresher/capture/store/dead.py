"""The table of dead records: those that could not be applied, with the reason. An operator retries or drops them.

A record is added in the same transaction that moves the stored offset past it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from thresher.capture.record import CapturedRecord, Flaw, FlawedRecord
from thresher.capture.store.tables import CaptureTables
from thresher.db import statement
from thresher.db.postgres.arrays import bytea_array, text_array
from thresher.db.postgres.cursor import ByteaArray, OwnCursor, TextArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecord:
    """A record that could not be applied, with the reason. A head's record lacks the value and the headers."""

    id: int
    record: CapturedRecord
    topic_id: str
    flaw: Flaw
    dead_time: datetime
    # The size of the value; None if there is none.
    value_bytes: int | None


class DeadRecords:
    """The dead records of one capture. Each call is one statement in the caller's transaction."""

    def __init__(self, connection: Connection[Any], tables: CaptureTables, capture: str) -> None:
        self._connection, self._table, self._capture = connection, tables.dead, capture

    def add(self, found: Iterable[FlawedRecord], topic_id: str) -> None:
        """Add records of one topic."""
        rows = [_values(self._capture, topic_id, each) for each in found]
        if rows:
            OwnCursor(self._connection).executemany(statement("capture_dead_insert", self._table), rows)

    def list(
        self,
        *,
        topic: str | None = None,
        ids: Sequence[int] | None = None,
        most: int = 1_000_000,
        whole: bool = False,
    ) -> list[DeadRecord]:
        """Return records, the oldest first: all, those of a topic, or those with these ids.

        Without `whole`, these are heads: a producer decides how large records are, and there may be many.
        """
        asked = {
            "capture": self._capture, "topic": topic, "ids": None if ids is None else [*ids], "most": most,
            "whole": whole,
        }  # fmt: skip
        rows = OwnCursor(self._connection).execute(statement("capture_dead_list", self._table), asked)
        return [_dead(row) for row in rows]

    def places(self, topic: str, topic_id: str) -> set[tuple[int, int]]:
        """Return the partitions and offsets of a topic's dead records."""
        asked = [self._capture, topic, topic_id]
        return set(OwnCursor(self._connection).execute(statement("capture_dead_places", self._table), asked).fetchall())

    def take(self, id_: int) -> bool:
        """Remove a record; False if it was removed before."""
        taken = statement("capture_dead_take", self._table)
        return OwnCursor(self._connection).execute(taken, [self._capture, id_]).fetchone() is not None


def _values(capture: str, topic_id: str, found: FlawedRecord) -> list[Any]:
    record = found.record
    return [
        capture,
        record.topic,
        topic_id,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        TextArray(text_array([_storable(name) for name, _ in record.headers], "utf-8")),
        ByteaArray(bytea_array([value for _, value in record.headers])),
        found.flaw.kind,
        _storable(found.flaw.reason),
    ]


def _dead(row: Sequence[Any]) -> DeadRecord:
    id_, topic, topic_id, partition, offset, timestamp_ms, key, value, names, values, size, *fate = row
    dead_time, kind, reason = fate
    headers = tuple(zip(names, values, strict=True))
    return DeadRecord(
        id=id_,
        record=CapturedRecord(topic, partition, offset, timestamp_ms, key, value, headers),
        topic_id=topic_id,
        flaw=Flaw(kind=kind, reason=reason),
        dead_time=dead_time,
        value_bytes=size,
    )


def _storable(text: str) -> str:
    """Return a text that Postgres can store. A header's name or a reason must not make the insert fail."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
