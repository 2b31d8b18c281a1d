"""The stored offsets of a capture: its only progress. Each call but `add` is one statement on the connection."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from psycopg import Connection

from thresher.capture.record import Place
from thresher.capture.store.tables import CaptureTables
from thresher.db import statement
from thresher.db.postgres.arrays import bigint_array, text_array
from thresher.db.postgres.cursor import BigintArray, OwnCursor, TextArray


class StoredOffset(NamedTuple):
    """The next offset to apply, and the id of the topic: a topic that is created again has another id."""

    topic_id: str
    next_offset: int


Stored = dict[Place, StoredOffset]


class StoredOffsets:
    """The offsets of one capture."""

    def __init__(self, connection: Connection[Any], tables: CaptureTables, capture: str) -> None:
        self._connection, self._capture = connection, capture
        self._table = tables.offsets
        self._lock = statement("capture_offsets_lock", self._table)
        self._move = statement("capture_offsets_move", self._table)

    def read(self) -> Stored:
        """Return all stored offsets, without a lock."""
        return self._found("capture_offsets_read")

    def begin(self, place: Place, stored: StoredOffset) -> None:
        """Store the first offset of a partition, unless it has a stored offset."""
        values = [self._capture, *place, *stored]
        OwnCursor(self._connection).execute(statement("capture_offsets_begin", self._table), values)

    def add(self, begins: Mapping[Place, StoredOffset]) -> None:
        """Store the first offsets of added partitions that have none, in a transaction of its own.

        It waits for a rewind that holds the other offsets: nothing may be applied beside a rewind.
        """
        with self._connection.transaction():
            self.take()
            for place, stored in begins.items():
                self.begin(place, stored)

    def lock(self, places: Iterable[Place]) -> Stored:
        """Lock offsets until the end of the transaction, and return them. Partitions without one are left out."""
        wanted = sorted(places)
        topics = TextArray(text_array([topic for topic, _ in wanted], "utf-8"))
        partitions = BigintArray(bigint_array([partition for _, partition in wanted]))
        rows = OwnCursor(self._connection).execute(self._lock, [self._capture, topics, partitions])
        return {(topic, partition): StoredOffset(*rest) for topic, partition, *rest in rows}

    def move(self, ends: Mapping[Place, int]) -> None:
        """Move offsets forward. This transaction must have locked them."""
        places = list(ends)
        topics = TextArray(text_array([topic for topic, _ in places], "utf-8"))
        partitions = BigintArray(bigint_array([partition for _, partition in places]))
        moved = BigintArray(bigint_array(list(ends.values())))
        OwnCursor(self._connection).execute(self._move, [topics, partitions, moved, self._capture])

    def hold(self) -> Stored:
        """Lock all offsets against changes until the end of the transaction. The lock is shared."""
        return self._found("capture_offsets_hold")

    def take(self) -> Stored:
        """Lock all offsets exclusively until the end of the transaction."""
        return self._found("capture_offsets_take")

    def set(self, place: Place, stored: StoredOffset) -> None:
        """Set an offset. This transaction must have locked it."""
        values = [*stored, self._capture, *place]
        OwnCursor(self._connection).execute(statement("capture_offsets_set", self._table), values)

    def remove(self, place: Place) -> None:
        """Remove the offset of a partition that the topic does not have any more."""
        OwnCursor(self._connection).execute(
            statement("capture_offsets_remove", self._table), [self._capture, *place]
        )  # fmt: skip

    def _found(self, name: str) -> Stored:
        rows = OwnCursor(self._connection).execute(statement(name, self._table), [self._capture])
        return {(topic, partition): StoredOffset(*rest) for topic, partition, *rest in rows}
