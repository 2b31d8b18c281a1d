"""Reads this pipeline's own records in one partition of the progress topic.

A record is ours if it has our seal. Before the offset where seals began, a record without a seal that names our outbox
is ours too: an earlier version wrote it. Seals begin with our first claim, which may come long before the first sealed
progress. Any other record is foreign: it is counted, and otherwise ignored. A claim without our seal is ignored too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from thresher.delivery.claims import Claim, decoded, holder
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.progress import StoredProgress
from thresher.delivery.progress_topic.seal import Seal
from thresher.kafka.committed_tail import CommittedTail, Opener, TailRecord

P = TypeVar("P", bound=StoredProgress)


class Tail(Protocol):
    """The committed records of a partition: `CommittedTail`."""

    @property
    def end(self) -> int:
        """The offset where the last read ended."""

    def sample(self) -> None:
        """Ask for the end."""

    def windows(self) -> Iterator[Iterator[TailRecord]]:
        """Yield the partition's last records, then more of them, until all are read."""

    def records(self) -> Iterator[TailRecord]:
        """Yield all records."""

    def require_never_written(self) -> None:
        """Raise if the partition had records that are gone."""

    def close(self) -> None:
        """Let go of connections."""


class ProgressLog(Generic[P]):
    """Reads the committed progress of one partition. A context manager, for one thread."""

    def __init__(self, tail: Tail, seal: Seal, outbox_id: str, decode: Callable[[bytes], P]) -> None:
        """The log sets `seal.since`. `decode` raises `ForeignProgress` for bytes that are no progress record."""
        self._tail, self._seal, self._outbox_id, self._decode = tail, seal, outbox_id, decode
        # Foreign records: after our last record (after `whole`: all); and all that the last call of `last` read.
        self.foreign_records = self.met = 0
        # The outbox that a foreign record names, if it is a progress record.
        self.other_outbox: str | None = None
        # Our last record, with its offset and its time by the broker's clock.
        self.place: TailRecord | None = None
        # The claims after it, oldest first.
        self._claims: list[Claim] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._tail.close()

    def sample(self) -> None:
        """Ask for the end of the partition. To be called before an opener is committed."""
        self._tail.sample()

    def last(self) -> P | None:
        """Return our last record, or None if there never was one.

        Raises `TailGone` if records were removed from the partition, and `ForeignProgress` if a newer version wrote the
        last one.
        """
        self.place = None
        # Records without a seal that name our outbox: their offsets, and the last one before our first claim.
        unsealed: list[int] = []
        earlier: TailRecord | None = None
        first_claim: int | None = None
        for window in self._tail.windows():
            self.foreign_records = self.met = 0
            self._claims = []
            unsealed, earlier, first_claim = [], None, None
            for record in window:
                since = self._seal.since_of(record.key, record.value, record.headers)
                if not record.value:
                    claim = decoded(record.key)
                    if since is not None and claim is not None:
                        self._claims.append(claim)
                        first_claim = record.offset if first_claim is None else first_claim
                elif since is not None:
                    self._seal.since, self.place, self.foreign_records, self._claims = since, record, 0, []
                elif self._names_us(record):
                    unsealed.append(record.offset)
                    earlier = record if first_claim is None else earlier
                else:
                    self.foreign_records += 1
                    self.met += 1
            if self.place is not None:
                break
        else:
            # No progress record is sealed yet: an earlier version wrote the records before our first claim.
            self._seal.since = self._tail.end if first_claim is None else first_claim
        last = -1 if self.place is None else self.place.offset
        self.foreign_records += sum(offset >= max(self._seal.since, last) for offset in unsealed)
        self.met += sum(offset >= self._seal.since for offset in unsealed)
        self.place = self.place or earlier
        if self.place is None:
            self._tail.require_never_written()
            return None
        return self._decode(self.place.value)

    @property
    def holder(self) -> Claim:
        """The last claim that counts, by the last call of `last`."""
        return holder(None if self.place is None else decoded(self.place.key), self._claims)

    def whole(self) -> Iterator[P]:
        """Yield our records that are still there, oldest first."""
        if self.last() is None:
            return
        self.foreign_records = 0
        for record in self._tail.records():
            sealed = self._seal.since_of(record.key, record.value, record.headers) is not None
            if sealed or (record.offset < self._seal.since and self._names_us(record)):
                yield self._decode(record.value)
            else:
                self.foreign_records += 1

    def _names_us(self, record: TailRecord) -> bool:
        try:
            named = self._decode(record.value).origin.outbox_id
        except ForeignProgress:
            return False
        if named != self._outbox_id:
            self.other_outbox = named
        return named == self._outbox_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSource(Generic[P]):
    """The progress topic of a pipeline, and how its records are read. `pipeline` is the name in the control row."""

    pipeline: str
    topic: str
    kafka: Mapping[str, Any] = field(repr=False)
    decode: Callable[[bytes], P]

    def seal(self, secret: str, partition: int) -> Seal:
        """Return the seal of a partition."""
        return Seal(secret=secret, topic=self.topic, partition=partition)

    def log(self, seal: Seal, outbox_id: str, *, commit_opener: Callable[[], Opener] | None = None) -> ProgressLog[P]:
        """Return the log of the seal's partition. `commit_opener` is as in `CommittedTail`."""
        tail = CommittedTail(seal.topic, seal.partition, self.kafka, commit_opener=commit_opener)
        return ProgressLog(tail, seal, outbox_id, self.decode)
