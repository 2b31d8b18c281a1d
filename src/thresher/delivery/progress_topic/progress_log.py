"""One partition of the progress topic, of which only this pipeline's own records are read.

A record is ours if it has our seal. Before the offset where seals began, one that names our outbox is ours too: an
earlier version wrote it. Seals begin with our first claim, an empty record, also where no progress follows it for long.
Any other record is a stranger's: it is counted, and nothing follows from it. So it is with claims without our seal.
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
        """Yield the last records, then more of them, up to all."""

    def records(self) -> Iterator[TailRecord]:
        """Yield all records."""

    def require_never_written(self) -> None:
        """Raise if there were records that are gone."""

    def close(self) -> None:
        """Let go of connections."""


class ProgressLog(Generic[P]):
    """Reads the committed progress of one partition. A context manager, for one thread."""

    def __init__(self, tail: Tail, seal: Seal, outbox_id: str, decode: Callable[[bytes], P]) -> None:
        """When seals began in the partition, the log notes in `seal`. `decode` raises `ForeignProgress`."""
        self._tail, self._seal, self._outbox_id, self._decode = tail, seal, outbox_id, decode
        # Records of strangers: those behind our last one, or among all of them; and all that the last look met.
        self.strangers = self.met = 0
        # The id of the outbox that a stranger's record names, if it is progress at all.
        self.other_outbox: str | None = None
        # Where our last record is, and its time by the broker's clock.
        self.place: TailRecord | None = None
        # The claims behind it, oldest first.
        self._claims: list[Claim] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._tail.close()

    def sample(self) -> None:
        """Ask for the end of the partition, before an opener is committed."""
        self._tail.sample()

    def last(self) -> P | None:
        """Return our last record, or None if there never was one.

        Raises `TailGone` if there was one, and `ForeignProgress` if a newer version wrote it.
        """
        self.place = None
        # Without a seal, and in our name: their offsets, and the last of those before our first claim.
        unsealed: list[int] = []
        earlier: TailRecord | None = None
        first_claim: int | None = None
        for window in self._tail.windows():
            self.strangers = self.met = 0
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
                    self._seal.since, self.place, self.strangers, self._claims = since, record, 0, []
                elif self._names_us(record):
                    unsealed.append(record.offset)
                    earlier = record if first_claim is None else earlier
                else:
                    self.strangers += 1
                    self.met += 1
            if self.place is not None:
                break
        else:
            # No progress is sealed yet: an earlier version has written what lies before our first claim.
            self._seal.since = self._tail.end if first_claim is None else first_claim
        last = -1 if self.place is None else self.place.offset
        self.strangers += sum(offset >= max(self._seal.since, last) for offset in unsealed)
        self.met += sum(offset >= self._seal.since for offset in unsealed)
        self.place = self.place or earlier
        if self.place is None:
            self._tail.require_never_written()
            return None
        return self._decode(self.place.value)

    @property
    def holder(self) -> Claim:
        """The last claim that counts, as of the last call of `last`."""
        return holder(None if self.place is None else decoded(self.place.key), self._claims)

    def whole(self) -> Iterator[P]:
        """Yield our records that are still there, oldest first."""
        if self.last() is None:
            return
        self.strangers = 0
        for record in self._tail.records():
            sealed = self._seal.since_of(record.key, record.value, record.headers) is not None
            if sealed or (record.offset < self._seal.since and self._names_us(record)):
                yield self._decode(record.value)
            else:
                self.strangers += 1

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
    """Where the progress of a pipeline lies, and how it is read. `pipeline` is the name in the control row."""

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
