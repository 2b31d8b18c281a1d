"""The history checker: holds what was read from Kafka against what writers recorded, and says what is wrong.

1. Lost: a committed row that was not read, is not among the dead, was not filtered and no longer waits in the outbox.
2. Phantom: a record of a transaction that rolled back, one whose identity nobody recorded, or one without an identity.
3. Duplicated: a row read again. At least once allows a repeat that directly follows its original within its key and
   partition; rows without a key have no order to break, so theirs may be anywhere. Also a row both read and dead.
4. Out of order, per topic and key: a row read after one whose transaction began only after its own was known to have
   committed; a row read after a later one of its own transaction; a key in a second partition. What has an unknown
   outcome may be read or not, and precedes nothing.
5. Altered: a record whose key, topic, value, headers, partition or timestamp is not what was written.

A record whose identity names a run that is not in the history is a phantom, unless `other_runs` is allowed for: then it
is counted, and judged by the history of its own run.

A history without a committed row proves nothing. Rows that are dead are no success, unless so many are allowed.

Pure, and one pass over the reads: a running maximum per key suffices. The times of all transactions are of one clock,
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
    """What a check found, in rows except for `read` (records) and `keys`; `examples` has lines by the name of a field.

    `dead`, `filtered` and `pending` count rows of this history alone. `pending` counts all that wait in the outbox,
    those that were read already, but not settled, too. `altered` and `other_runs` count records.
    `longest_silence_seconds` is how long nothing was delivered although rows waited, by the times of records; None
    where the history does not tell.
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
        """Whether there was something to judge, nothing is wrong with it, and everything was relayed."""
        return not any(getattr(self, fault) for fault in FAULTS) and not self.objections

    @property
    def objections(self) -> list[str]:
        """Why it is not good even where there is no fault, a line each."""
        rules = (
            (not self.committed, "no row was committed: this proves nothing"),
            (self.dead > self.allowed_dead, f"{_rows_are(self.dead)} dead, and {self.allowed_dead:,} may be"),
            (self.pending and not self.allow_pending, f"{_rows_are(self.pending)} still in the outbox"),
        )
        return [line for applies, line in rules if applies]

    def line(self) -> str:
        """Return the verdict in a line."""
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
    """Judge a history by the reads, which are in the order of their offsets within each partition.

    Every surplus read is a duplicate of its own. A record that is a phantom is nothing else besides. Order is asked of
    the first occurrence of a row that is not altered, and each such row is out of order at most once. `transformed`:
    records may say something else than their rows, and only identities are compared. `other_runs`: records of runs that
    the history does not name are allowed.
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
    """A row of the history; `place` tells its transaction from others without comparing all of it."""

    place: int
    transaction: Transaction
    number: int
    key: bytes | None
    content: Content | None

    @property
    def placed(self) -> bool:
        """Whether it asks for a partition of its own."""
        return self.content is not None and self.content.partition is not None

    def delivered(self, read: Read) -> tuple[float, float] | None:
        """Return when it was committed and when it was sent, in seconds since 1970; None if nobody noted that."""
        transaction = self.transaction
        if transaction.outcome is not Outcome.COMMITTED or transaction.end is None or transaction.epoch is None:
            return None
        # A time of its own says nothing about when it was sent.
        own = self.content is None or self.content.timestamp is not None
        if read.timestamp is None or (own and not read.stamped_by_broker):
            return None
        return (transaction.end + transaction.epoch) / 1e9, read.timestamp / 1e3

    def precedes_for_sure(self, begin: int) -> bool:
        """Whether its commit was answered before that moment."""
        end = self.transaction.end
        return self.transaction.outcome is Outcome.COMMITTED and end is not None and end < begin


def _rows(transactions: Iterable[Transaction]) -> dict[str, _Row]:
    return {
        identity(each.run, each.writer, number): _Row(place, each, number, key_bytes(key), content)
        for place, each in enumerate(transactions)
        for (number, key), content in zip(each.rows, each.contents or (None,) * len(each.rows), strict=True)
    }


class _Tally:
    """Counts faults and keeps the first lines about each."""

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
        """Take note of a record within its key and partition, and return the identity of the one before it."""
        place = (read.topic, read.partition, key_bytes(read.key))
        before = self._last.get(place)
        self._last[place] = read.identity
        return before

    def read(self, read: Read) -> None:
        """Judge one record by itself and by those before it."""
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
        """Judge what became of one row, after all was read."""
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
        """Yield when each row was committed and first delivered, as far as that is known."""
        for name, read in self._first.items():
            if (times := self._rows[name].delivered(read)) is not None:
                yield times

    def _note(self, fault: str, line: Callable[[], str]) -> None:
        self.counts[fault] += 1
        if len(self.examples[fault]) < self._limit:
            self.examples[fault].append(line())


class _Order:
    """What was read of each key so far, as far as later rows can be too late for it."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, bytes], list[int]] = {}
        self._latest: dict[tuple[str, int, bytes], tuple[Read, _Row]] = {}
        self._numbers: dict[tuple[str, int, bytes, int], tuple[Read, _Row]] = {}

    def problem(self, read: Read, key: bytes, row: _Row) -> str | None:
        """Take note of a row with a key, and say why it should not be here; None if it may."""
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
        """Return where the key was before, if it is somewhere else for the first time."""
        partitions = self._partitions.setdefault((read.topic, key), [])
        if read.partition in partitions:
            return None
        partitions.append(read.partition)
        return partitions[0] if len(partitions) > 1 else None


def _why_phantom(read: Read, row: _Row | None) -> str:
    if row is not None:
        return "it was rolled back"
    return "nobody recorded it" if read.identity else "it has no identity"


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
