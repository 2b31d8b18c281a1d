"""The history checker: compares what was read from Kafka with what writers recorded, and reports faults.

1. Lost: a committed row that was not read, is not dead, was not filtered, and is not pending in the outbox.
2. Phantom: a record of a rolled-back transaction, with an identity that is not in the history, or without an identity.
3. Duplicated: a row that was read more than once. At-least-once delivery allows a repeat directly after its original
   within key and partition; for rows without a key, anywhere. Also duplicated is a row that was read and is dead.
4. Out of order, per topic and key: a row that was read after a row whose transaction began after its own had certainly
   committed; a row that was read after a later row of its own transaction; a key in a second partition. A row with an
   unknown outcome may be read or not, and need not precede any other.
5. Altered: a record whose key, topic, value, headers, partition or timestamp differs from the row.

A record whose identity names a run that is not in the history is a phantom. With `other_runs` it is only counted, since
the history of its own run judges it.

A history without a committed row proves nothing. Dead rows are a failure if there are more than `allowed_dead`.

Pure, with one pass over the reads: a running maximum per key suffices. The times of all transactions are of one clock,
so runs of one history must not have a reboot between them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from thresher.core.errors import shorten
from thresher.testing.history import Content, Outcome, Transaction, identity, run_of
from thresher.testing.record import Read, difference, key_bytes, shown
from thresher.testing.silence import longest_silence

FAULTS = ("lost", "phantom", "duplicated", "reordered", "altered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a check. Numbers are rows, except for `read`, `altered` and `other_runs` (records) and `keys`.

    `dead`, `filtered` and `pending` count only rows of this history. `pending` also counts rows that were read, but are
    not settled yet. `longest_silence_seconds` is how long nothing was delivered although rows waited, by the timestamps
    of records; None if the history does not have the times. `examples` has lines by the name of a field.
    """

    committed: int
    rolled_back: int
    unknown: int
    keys: int
    read: int
    repeated: int
    dead: int
    filtered: int
    pending: int
    lost: int
    phantom: int
    duplicated: int
    reordered: int
    altered: int
    other_runs: int = 0
    longest_silence_seconds: float | None = None
    allow_pending: bool = False
    allowed_dead: int = 0
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is no fault and no objection."""
        return not any(getattr(self, fault) for fault in FAULTS) and not self.objections

    @property
    def objections(self) -> list[str]:
        """The reasons why the check fails even without a fault, one line each."""
        rules = (
            (not self.committed, "no row was committed: this proves nothing"),
            (self.dead > self.allowed_dead, f"{_rows_are(self.dead)} dead, at most {self.allowed_dead:,} are allowed"),
            (self.pending and not self.allow_pending, f"{_rows_are(self.pending)} still in the outbox"),
        )
        return [line for applies, line in rules if applies]

    def line(self) -> str:
        """Return the faults in one line."""
        return (
            f"lost {self.lost}, phantom {self.phantom}, duplicated {self.duplicated}, out of order {self.reordered}, "
            f"altered {self.altered}"
        )


def check(
    transactions: Iterable[Transaction],
    reads: Iterable[Read],
    *,
    dead: Collection[str] = frozenset(),
    pending: Collection[str] = frozenset(),
    filtered: Collection[str] = frozenset(),
    repeats_allowed: bool = False,
    allow_pending: bool = False,
    allowed_dead: int = 0,
    transformed: bool = False,
    other_runs: bool = False,
    examples: int = 5,
) -> Verdict:
    """Check a history against the reads, which must be in the order of offsets within each partition.

    Every additional read of a row counts as one duplicate. A phantom has no other fault. The order is checked for the
    first read of a row, if it is not altered; a row is out of order at most once. `transformed`: contents may differ,
    and only identities are compared. `other_runs`: records of runs that are not in the history are allowed.
    """
    transactions = list(transactions)
    rows = _rows(transactions)
    runs = {each.run for each in transactions}
    tally = _Tally(rows, repeats_allowed=repeats_allowed, transformed=transformed, examples=examples)
    count = others = 0
    for read in reads:
        count += 1
        if other_runs and (run := run_of(read.identity)) is not None and run not in runs:
            others += 1
            tally.pass_by(read)
        else:
            tally.read(read)
    dead, pending, filtered = set(dead), set(pending), set(filtered)
    outcomes = dict.fromkeys(Outcome, 0)
    for name, row in rows.items():
        outcomes[row.transaction.outcome] += 1
        tally.settle(name, row, dead=dead, pending=pending, filtered=filtered)
    return Verdict(
        committed=outcomes[Outcome.COMMITTED],
        rolled_back=outcomes[Outcome.ROLLED_BACK],
        unknown=outcomes[Outcome.UNKNOWN],
        keys=len({row.key for row in rows.values()} - {None}),
        read=count,
        repeated=tally.repeated,
        other_runs=others,
        filtered=len(filtered & rows.keys()),
        longest_silence_seconds=longest_silence(tally.deliveries()),
        allow_pending=allow_pending,
        allowed_dead=allowed_dead,
        examples={name: tuple(lines) for name, lines in tally.examples.items() if lines},
        **tally.counts,
    )


class _Row(NamedTuple):
    """A row of the history. `place` is the number of its transaction in the history, for quick comparison."""

    place: int
    transaction: Transaction
    number: int
    key: bytes | None
    content: Content | None

    @property
    def placed(self) -> bool:
        """Whether the row names its partition."""
        return self.content is not None and self.content.partition is not None

    def delivered(self, read: Read) -> tuple[float, float] | None:
        """Return the times of commit and of sending, in seconds since 1970; None if they are not known."""
        transaction = self.transaction
        if transaction.outcome is not Outcome.COMMITTED or transaction.end is None or transaction.epoch is None:
            return None
        # A timestamp that the row has set is not the time of sending.
        own = self.content is None or self.content.timestamp is not None
        if read.timestamp is None or (own and not read.stamped_by_broker):
            return None
        return (transaction.end + transaction.epoch) / 1e9, read.timestamp / 1e3

    def precedes_for_sure(self, begin: int) -> bool:
        """Whether its commit was answered before a later transaction's begin."""
        end = self.transaction.end
        return self.transaction.outcome is Outcome.COMMITTED and end is not None and end < begin


def _rows(transactions: Iterable[Transaction]) -> dict[str, _Row]:
    return {
        identity(each.run, each.writer, number): _Row(place, each, number, key_bytes(key), content)
        for place, each in enumerate(transactions)
        for (number, key), content in zip(each.rows, each.contents or (None,) * len(each.rows), strict=True)
    }


class _Tally:
    """Counts faults, and keeps the first examples of each."""

    def __init__(self, rows: Mapping[str, _Row], *, repeats_allowed: bool, transformed: bool, examples: int) -> None:
        self.repeated = 0
        self.counts = dict.fromkeys((*FAULTS, "pending", "dead"), 0)
        self.examples: dict[str, list[str]] = {name: [] for name in self.counts}
        self._limit = examples
        self._rows = rows
        self._repeats_allowed, self._transformed = repeats_allowed, transformed
        self._first: dict[str, Read] = {}
        self._last: dict[tuple[str, int, bytes | None], str] = {}
        self._order = _Order()

    def pass_by(self, read: Read) -> str | None:
        """Remember a record as the last of its key and partition; return the identity of the one before."""
        place = (read.topic, read.partition, key_bytes(read.key))
        before = self._last.get(place)
        self._last[place] = read.identity
        return before

    def read(self, read: Read) -> None:
        """Check one record by itself, and against those before it."""
        key, before = key_bytes(read.key), self.pass_by(read)
        row = self._rows.get(read.identity)
        if row is None or row.transaction.outcome is Outcome.ROLLED_BACK:
            self._note("phantom", lambda: f"{_at(read, row)}: {_why_phantom(read, row)}")
            return
        altered = None if self._transformed else difference(row.content, row.key, read)
        if altered is not None:
            self._note("altered", lambda: f"{_at(read, row)}: {altered}")
        if (first := self._first.setdefault(read.identity, read)) is not read:
            if self._repeats_allowed and (key is None or before == read.identity):
                self.repeated += 1
            else:
                self._note("duplicated", lambda: f"{_at(read, row)}: read before at {_where(first)}")
        elif altered is None and key is not None and key == row.key:
            problem = self._order.problem(read, key, row)
            if problem is not None:
                self._note("reordered", lambda: f"{_at(read, row)}: {problem}")

    def settle(self, name: str, row: _Row, *, dead: set[str], pending: set[str], filtered: set[str]) -> None:
        """Check one row after all records were read."""
        first = self._first.get(name)
        if name in pending:
            why = "not read yet" if first is None else f"read at {_where(first)}"
            self._note("pending", lambda: f"{_of(name, row)}: in the outbox, {why}")
        if name in dead:
            self._note("dead", lambda: f"{_of(name, row)}: set aside as dead")
            if row.transaction.outcome is Outcome.ROLLED_BACK:
                self._note("phantom", lambda: f"{_of(name, row)}: rolled back, and among the dead rows")
        if first is not None:
            if name in dead:
                self._note("duplicated", lambda: f"{_at(first, row)}: read, and also among the dead rows")
        elif row.transaction.outcome is Outcome.COMMITTED and not any(
            name in where for where in (dead, pending, filtered)
        ):
            self._note("lost", lambda: f"{_of(name, row)}: committed and never read")

    def deliveries(self) -> Iterator[tuple[float, float]]:
        """Yield the times of commit and first delivery of each row, as far as they are known."""
        for name, read in self._first.items():
            if (times := self._rows[name].delivered(read)) is not None:
                yield times

    def _note(self, fault: str, line: Callable[[], str]) -> None:
        self.counts[fault] += 1
        if len(self.examples[fault]) < self._limit:
            self.examples[fault].append(line())


class _Order:
    """The state for the check of order: of each key, the latest rows that were read so far."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, bytes], list[int]] = {}
        self._latest: dict[tuple[str, int, bytes], tuple[Read, _Row]] = {}
        self._numbers: dict[tuple[str, int, bytes, int], tuple[Read, _Row]] = {}

    def problem(self, read: Read, key: bytes, row: _Row) -> str | None:
        """Remember a row with a key; return why it is out of order, None if it is not."""
        strayed = None if row.placed else self._strayed(read, key)
        stream = (read.topic, read.partition, key)
        latest = self._latest.setdefault(stream, (read, row))
        if row.transaction.begin > latest[1].transaction.begin:
            self._latest[stream] = (read, row)
        mates = (*stream, row.place)
        mate = self._numbers.setdefault(mates, (read, row))
        if row.number > mate[1].number:
            self._numbers[mates] = (read, row)
        if strayed is not None:
            return f"its key was in partition {strayed} before"
        if row.precedes_for_sure(latest[1].transaction.begin):
            return f"committed before {_of(latest[0].identity, latest[1])} began, which was read at {_where(latest[0])}"
        if row.number < mate[1].number:
            return f"inserted before {mate[0].identity} of the same transaction, which was read at {_where(mate[0])}"
        return None

    def _strayed(self, read: Read, key: bytes) -> int | None:
        """Return the key's first partition if the key is in this partition for the first time; None otherwise."""
        partitions = self._partitions.setdefault((read.topic, key), [])
        if read.partition in partitions:
            return None
        partitions.append(read.partition)
        return partitions[0] if len(partitions) > 1 else None


def _why_phantom(read: Read, row: _Row | None) -> str:
    if row is not None:
        return "it was rolled back"
    return "it is not in the history" if read.identity else "it has no identity"


def _at(read: Read, row: _Row | None) -> str:
    name = read.identity if row is not None else shorten(read.identity)
    text = f"{name} key {shown(key_bytes(read.key))} at {_where(read)}"
    return text if row is None else f"{text}, {_transaction(row)}"


def _of(name: str, row: _Row) -> str:
    return f"{name} key {shown(row.key)}, {_transaction(row)}"


def _where(read: Read) -> str:
    return f"{read.topic}[{read.partition}]@{read.offset}"


def _transaction(row: _Row) -> str:
    return f"transaction {row.transaction.number} of writer {row.transaction.writer} of run {row.transaction.run}"


def _rows_are(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
