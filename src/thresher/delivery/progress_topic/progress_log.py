"""Reads this pipeline's own records in one partition of the progress topic.

A record is ours if it has our seal. Any other record is foreign: it is counted, and never decoded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from thresher.core.secrets import SecretText
from thresher.delivery.claims import Claim, decoded, holder
from thresher.delivery.progress import StoredProgress
from thresher.delivery.progress_topic.seal import Seal
from thresher.kafka.committed_tail import CommittedTail, Opener, TailRecord

P = TypeVar("P", bound=StoredProgress)


class Tail(Protocol):
    """The committed records of a partition: `CommittedTail`."""

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

    def __init__(self, tail: Tail, seal: Seal, decode: Callable[[bytes], P]) -> None:
        """`decode` gets records with our seal only. It raises `ForeignProgress` for those of a newer version."""
        self._tail, self._seal, self._decode = tail, seal, decode
        # Foreign records: after our last record (after `whole`: all); and all that the last call of `last` read.
        self.foreign_records = self.met = 0
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
        for window in self._tail.windows():
            self.foreign_records = self.met = 0
            self._claims = []
            for record in window:
                ours = self._seal.holds(record.key, record.value, record.headers)
                if ours and record.value:
                    self.place, self.foreign_records, self._claims = record, 0, []
                elif ours and (claim := decoded(record.key)) is not None:
                    self._claims.append(claim)
                elif record.value:
                    self.foreign_records += 1
                    self.met += 1
            if self.place is not None:
                return self._decode(self.place.value)
        self._tail.require_never_written()
        return None

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
            if self._seal.holds(record.key, record.value, record.headers):
                yield self._decode(record.value)
            else:
                self.foreign_records += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSource(Generic[P]):
    """The progress topic of a pipeline, and how its records are read. `pipeline` is the name in the control row."""

    pipeline: str
    topic: str
    kafka: Mapping[str, Any] = field(repr=False)
    decode: Callable[[bytes], P]

    def seal(self, secret: SecretText, partition: int) -> Seal:
        """Return the seal of a partition."""
        return Seal(secret=secret, topic=self.topic, partition=partition)

    def log(self, seal: Seal, *, commit_opener: Callable[[], Opener] | None = None) -> ProgressLog[P]:
        """Return the log of the seal's partition. `commit_opener` is as in `CommittedTail`."""
        tail = CommittedTail(seal.topic, seal.partition, self.kafka, commit_opener=commit_opener)
        return ProgressLog(tail, seal, self.decode)
