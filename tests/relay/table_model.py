"""A model of the outbox's tables: pending rows, marks, dead rows and control rows. Each call is a transaction.

The property tests keep their rows here, and `tests/contract` tests the same model against the store's contract, beside
Postgres. Rows are identified by id and create time; a message is any object with a topic and a key.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from thresher.core.errors import InvalidInput, Superseded
from thresher.db.control import ControlRow, NewControlRow
from thresher.db.outbox_store import DeadFate, Fates, Wanted
from thresher.db.problem import DatabaseRefused

Version = tuple[int, int]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Keyed(Protocol):
    """The parts of a message that the tables use."""

    @property
    def topic(self) -> str: ...

    @property
    def key(self) -> bytes | None: ...


M = TypeVar("M", bound=Keyed)


@dataclass(frozen=True, slots=True)
class DeadEntry(Generic[M]):
    """A row that was set aside, and its fate."""

    message: M
    fate: DeadFate


@dataclass
class TableModel(Generic[M]):
    """The tables of one outbox."""

    bucket: Callable[[int, M], int]
    size: Callable[[M], int] = lambda _: 1
    outbox: dict[int, tuple[int, M]] = field(default_factory=dict)
    dead: dict[Version, DeadEntry[M]] = field(default_factory=dict)
    marks: dict[int, Hashable] = field(default_factory=dict)
    control: dict[str, ControlRow] = field(default_factory=dict)
    next_id: int = 1

    def snapshot(self) -> "TableModel[M]":
        """Return a copy of the tables, as a backup."""
        return replace(
            self, outbox=dict(self.outbox), dead=dict(self.dead), marks=dict(self.marks), control=dict(self.control)
        )

    # Writers

    def draw_id(self) -> int:
        """Return the next id that is free, as a sequence does."""
        while self.next_id in self.outbox:
            self.next_id += 1
        self.next_id += 1
        return self.next_id - 1

    def put(self, id_: int, time: int, message: M) -> None:
        """Commit a row."""
        assert id_ not in self.outbox
        self.outbox[id_] = (time, message)

    def truncate(self) -> None:
        """Truncate the outbox, and restart its ids."""
        self.outbox.clear()
        self.marks.clear()
        self.next_id = 1

    # Reading

    def pending(self, wanted: Wanted, leader: Hashable = None) -> list[tuple[int, int, M]]:
        """Return rows that may be sent, by bucket and then by id, without the rows that this leader has marked."""
        blocked = {_stream(entry.message) for entry in self.dead.values() if entry.fate.blocking}
        left_out = {*wanted.hot_keys, *(stream for stream in blocked if stream[1] is not None)}
        cut = 2**63
        by_bucket: dict[int, list[tuple[int, int, M]]] = {bucket: [] for bucket in wanted.buckets}
        for id_, (time, message) in sorted(self.outbox.items()):
            if (
                (rows := by_bucket.get(self.bucket(id_, message))) is not None
                and (leader is None or self.marks.get(id_) != leader)
                and wanted.in_flight.get(id_) != time
                and (message.topic in wanted.held_topics) == wanted.among
                and _stream(message) not in left_out
            ):
                if wanted.rows_per_bucket is None or len(rows) < wanted.rows_per_bucket:
                    rows.append((id_, time, message))
                else:
                    cut = min(cut, rows[-1][0])
        found = [row for rows in by_bucket.values() for row in rows]
        if wanted.by_id:
            found = sorted(row for row in found if row[0] <= cut)
        return list(self._bounded(found[: wanted.rows], wanted.batch_bytes))

    def _bounded(self, rows: Sequence[tuple[int, int, M]], most: int) -> Iterator[tuple[int, int, M]]:
        running = 0
        for place, row in enumerate(rows):
            running += self.size(row[2])
            if place and running > most:
                return
            yield row

    # Marks

    def mark(self, wanted: Wanted, leader: Hashable, relay: str, term: str) -> list[tuple[int, int, M]]:
        """Mark rows that may be sent, and return them as `pending` does; raises `Superseded` under another term."""
        if self.term(relay) != term:
            raise Superseded("the term is another's")
        found = self.pending(wanted, leader)
        self.mark_rows([id_ for id_, _, _ in found], leader, relay, term)
        return found

    def mark_rows(self, ids: Collection[int], leader: Hashable, relay: str, term: str) -> None:
        """Mark those of these rows that exist; none under another term."""
        if self.term(relay) == term:
            self.marks.update(dict.fromkeys((id_ for id_ in ids if id_ in self.outbox), leader))

    def reset(self, ids: Collection[int], leader: Hashable, relay: str, term: str) -> int:
        """Remove this leader's marks, and return their number; 0 under another term."""
        if self.term(relay) != term:
            return 0
        mine = {id_ for id_ in ids if self.marks.get(id_) == leader}
        for id_ in mine:
            del self.marks[id_]
        return len(mine)

    # Settling

    def settle(self, fates: Fates, mark: Hashable = None) -> list[Version]:
        """Remove settled rows (with a mark, only marked ones) and set dead rows aside; return the rows found."""
        pairs = zip(fates.ids, fates.create_times, strict=True)
        going = [pair for pair in pairs if mark is None or self.marks.get(pair[0]) == mark]
        found = [version for version in going if self._remove(version) is not None]
        for version, fate in {(each.id, each.create_time): each for each in fates.dead}.items():
            message = self._remove(version)
            if message is not None:
                self.dead[version] = DeadEntry(message, fate)
                found.append(version)
        return found

    def left(self, versions: Collection[Version], mark: Hashable = None) -> list[Version]:
        """Return the rows that are still pending; with a mark, only rows with that mark."""
        return [
            (id_, time)
            for id_, time in versions
            if id_ in self.outbox and self.outbox[id_][0] == time and (mark is None or self.marks.get(id_) == mark)
        ]

    def _remove(self, version: Version) -> M | None:
        if not self.left([version]):
            return None
        self.marks.pop(version[0], None)
        return self.outbox.pop(version[0])[1]

    # Dead rows

    def replay(self, versions: Collection[Version], time: int) -> list[M]:
        """Put dead rows back under their ids; of several with one id, the oldest. If an id is taken, change nothing."""
        chosen: dict[int, Version] = {}
        for version in sorted(versions):
            chosen.setdefault(version[0], version)
        if taken := chosen.keys() & self.outbox.keys():
            raise InvalidInput(f"a row with the same id is in the outbox: {sorted(taken)}")
        messages = [self.dead.pop(version).message for version in chosen.values()]
        for id_, message in zip(chosen, messages, strict=True):
            self.put(id_, time, message)
        return messages

    # Control rows

    def term(self, relay: str) -> str | None:
        """Return the term of the control row; None without a row."""
        return self.control[relay].term if relay in self.control else None

    def insert(self, row: NewControlRow, time: datetime = _EPOCH) -> list[str]:
        """Insert a control row, unless the name has one or the outbox has rows of other names, which are returned."""
        others = sorted(name for name, each in self.control.items() if each.outbox == row.outbox and name != row.name)
        if not others and row.name not in self.control:
            self.control[row.name] = ControlRow(
                outbox=row.outbox, outbox_id=row.outbox_id, system_id=row.system_id, term=row.term, mode=row.mode,
                shards=row.shards, progress_topic_id=None, term_time=time, secret=row.outbox_id,
            )  # fmt: skip
        return others

    def take(self, relay: str, term: str, time: datetime = _EPOCH) -> ControlRow | None:
        """Write a new leader's term."""
        if relay not in self.control:
            return None
        self.control[relay] = replace(self.control[relay], term=term, term_time=time, settled_on=None)
        return self.control[relay]

    def lay_out(
        self,
        relay: str,
        *,
        term: str,
        mode: str,
        shards: int,
        progress_topic_id: str | None,
        settled_on: str | None = None,
    ) -> bool:
        """Write the layout under the term."""
        if self.term(relay) != term:
            return False
        row = self.control[relay]
        self.control[relay] = replace(
            row, mode=mode, shards=shards, progress_topic_id=progress_topic_id, settled_on=settled_on
        )
        return True

    def rename(self, relay: str, *, old: str, outbox: str) -> bool:
        """Give an outbox's row another name."""
        row = self.control.get(old)
        if row is None or row.outbox != outbox or relay == old:
            return False
        if relay in self.control:
            raise DatabaseRefused(f"the name {relay!r} belongs to the relay of another outbox")
        del self.control[old]
        self.control[relay] = replace(row, progress_topic_id=None)
        return True

    def adopt(self, relay: str, *, system_id: str) -> bool:
        """Assign a row to this database, and forget its progress topic."""
        if relay not in self.control:
            return False
        self.control[relay] = replace(self.control[relay], system_id=system_id, progress_topic_id=None)
        return True


def _stream(message: Keyed) -> tuple[str, bytes | None]:
    return (message.topic, message.key)
