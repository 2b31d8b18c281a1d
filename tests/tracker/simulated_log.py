"""A partition of markers in memory, and a tracker that reads it, crashes and is replaced: for tests without servers.

All parts share the broker's clock, in milliseconds. A transaction is appended as a whole, followed by its end marker,
which no reader sees.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from thresher.core.spill import SpillFull
from thresher.queue.wire.marker import Marker, MarkerType, MessageId, encode
from thresher.tracker.protocol.contents import Contents
from thresher.tracker.protocol.tracking import Rules, Tracking
from thresher.tracker.protocol.transaction import Dead, Redelivered, Transaction, end_of, mark

QUEUE = b"q"


@dataclass(frozen=True, slots=True)
class Decided:
    """A message that a committed transaction redelivered, or made a dead letter."""

    at_ms: int
    id: MessageId
    fate: Redelivered | Dead


class StoreInMemory:
    """A store that takes `most` contents. Each place is used once."""

    def __init__(self, most: int) -> None:
        self.held: dict[int, bytes] = {}
        self.taken, self._most = 0, most

    def put(self, content: bytes) -> int:
        if len(self.held) >= self._most:
            raise SpillFull("full")
        self.taken += 1
        self.held[self.taken] = content
        return self.taken

    def get(self, place: int) -> bytes:
        return self.held[place]

    def forget(self, place: int) -> None:
        del self.held[place]


@dataclass
class SimulatedLog:
    """The log, with offsets from `first` on; None is a transaction's end marker."""

    rules: Rules
    seed: int = 0
    now_ms: int = 1_000_000
    # How far the broker's clock is ahead of the tracker's.
    ahead_ms: int = 0
    records: list[tuple[int, bytes] | None] = field(default_factory=list)
    first: int = 0
    committed: int = 0
    decided: list[Decided] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    # Where contents are kept that are not small. A tracker that starts finds it empty.
    store: StoreInMemory | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.begin()

    def begin(self) -> None:
        """Replace the tracker by a new one, which knows only the committed offset."""
        self.tracking = self._tracking()

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return len(self.records)

    def append(self, marker: Marker) -> None:
        """Append a consumer's marker."""
        self.records.append((self.now_ms + self.ahead_ms, encode(marker)))

    def start(self, number: int, after_ms: int, **fields: object) -> None:
        """Append a Start of a message."""
        message_id = MessageId(0, number)
        self.append(
            Marker(
                type=MarkerType.START,
                message_id=message_id,
                redeliver_after_ms=after_ms,
                key=QUEUE,
                value=b"%d" % number,
                **fields,  # type: ignore[arg-type]
            )
        )

    def end_of(self, number: int) -> None:
        """Append an End of a message."""
        self.append(Marker(type=MarkerType.END, message_id=MessageId(0, number)))

    def keep_alive(self, number: int, after_ms: int, **fields: object) -> None:
        """Append a KeepAlive of a message."""
        self.append(
            Marker(
                type=MarkerType.KEEPALIVE,
                message_id=MessageId(0, number),
                redeliver_after_ms=after_ms,
                **fields,  # type: ignore[arg-type]
            )
        )

    def read(self, most: int | None = None) -> None:
        """Let the tracker read up to `most` records, or all."""
        tracking, at = self.tracking, self.now_ms / 1000
        until = self.end if most is None else min(self.end, tracking.position + most)
        for offset in range(tracking.position, until):
            record = self.records[offset]
            if record is None:
                tracking.reach(offset + 1)
            else:
                tracking.take(offset, record[0], QUEUE, record[1], at)

    def ask(self, *, stale: bool = False) -> None:
        """Tell the tracker the end offset; `stale`: a broker that is cut off names the tracker's own position."""
        self.tracking.answered(self.now_ms / 1000, self.tracking.position if stale else self.end)

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Do the next transaction, and return whether there was one. `meanwhile` is called before it commits."""
        transaction = self.tracking.next(self.now_ms / 1000)
        if transaction is None:
            return False
        meanwhile()
        self.commit(transaction)
        self.tracking.committed(transaction, self.now_ms / 1000)
        return True

    def commit(self, transaction: Transaction) -> None:
        """Commit a transaction, without telling the tracker."""
        assert self.committed <= transaction.offset, "a committed offset goes back"
        self.transactions.append(transaction)
        written = [] if transaction.mark is None else [mark(transaction.mark[0])]
        written += transaction.copies
        for fate in transaction.fates:
            id_ = fate.marker.message_id
            self.decided.append(Decided(self.now_ms, id_, fate))
            written.append(end_of(fate))
        for each in written:
            self.append(each)
        if written:
            self.records.append(None)
        self.committed = transaction.offset

    def crash(self, *, committing: bool, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Replace the tracker by a new one; `committing`: its last transaction is committed all the same."""
        transaction = self.tracking.next(self.now_ms / 1000)
        if committing and transaction is not None:
            meanwhile()
            self.commit(transaction)
        self.begin()

    def trim(self) -> None:
        """Let retention remove the records before the committed offset."""
        self.records[: self.committed] = [None] * self.committed
        self.first = self.committed

    def run(self, milliseconds: int, step_ms: int = 100) -> None:
        """Let the tracker do all its work, for this many milliseconds."""
        for _ in range(0, milliseconds, step_ms):
            self.now_ms += step_ms
            self.settle()

    def settle(self) -> None:
        """Let the tracker read all records and do all work that is due now."""
        for _ in range(1_000):
            self.read()
            self.ask()
            if not self.step():
                return
        raise AssertionError("the tracker never comes to rest")

    def _tracking(self) -> Tracking:
        contents = Contents()
        if self.store is not None:
            self.store.held.clear()
            contents = Contents(self.store, roomy_bytes=0, most_bytes=0)
        return Tracking(
            0, self.committed, self.rules, contents=contents, draw=lambda: self._random.getrandbits(62)
        )  # fmt: skip
