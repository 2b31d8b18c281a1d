"""The progress record of a tail: written in the same Kafka transaction as the rows whose changes it decides.

Records are cumulative: the last committed record is sufficient. It holds the position up to which changes are decided,
the positions before it that still wait, and the dead changes of its own transaction. It also holds the position up to
which the slot may be confirmed. On the wire it is one Arrow batch of the packed waiting positions, with metadata.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from thresher.delivery.effects import Control
from thresher.delivery.fate import SENT, Dead, Fate, Kind
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.row import Rows
from thresher.tail.buffer import Bounds, DeadChange, LogBuffer
from thresher.tail.coverage import Coverage
from thresher.tail.log_span import UNKNOWN, LogSpan
from thresher.tail.position import Position, packed, unpacked

# Records of the version before had three columns of whole numbers.
_VERSION, _BEFORE = "tail-2", "tail-1"
_SCHEMA = pa.schema([("waiting", pa.uint8())])
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4"))
# Upper bounds of bytes in a record: schema and metadata, what a further waiting position adds (positions in the WAL are
# smaller than 2**55: it may split two differences), each dead change without its reason.
_FRAME_BYTES, _FURTHER_BYTES, _DEAD_BYTES = 4_096, 30, 128
# The time between two records while nothing is pending.
_NOTE_SECONDS = 3.0
# Shares of a record's bytes: for changes that waited before, for those of the current batch, and for dead changes.
_WAITING, _BATCH, _DEAD = 0.3, 0.4, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOrigin:
    """The outbox and term that wrote a record, and the system and timeline whose WAL was read."""

    outbox_id: str
    system_id: str
    timeline: int
    term: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TailProgress:
    """One transaction's progress. The rows that it carried are known to its own attempt only, not on the wire."""

    origin: TailOrigin
    number: int
    failures: int = 0
    coverage: Coverage
    span: LogSpan = UNKNOWN
    # Of the rows that it carried, in order: the buffer's numbers, the create times and the fates.
    ids: Sequence[int] = ()
    create_times: Sequence[int] = ()
    fates: Sequence[Fate] = ()
    # The dead changes among them, with all their columns.
    dead: Mapping[Position, DeadChange] = field(default_factory=dict)

    @property
    def all_sent(self) -> bool:
        """Whether every row was sent."""
        return self.fates.count(SENT) == len(self.fates)


def bounded(bounds: Bounds, most_bytes: int) -> Bounds:
    """Return the bounds of a buffer whose waiting changes fit into progress records of this size."""
    return replace(bounds, waiting_bytes=int(_WAITING * (most_bytes - _FRAME_BYTES)))


def batch_rows(rows: int, most_bytes: int) -> int:
    """Return how many rows a batch may have, so that all of them fit into a record if they have to wait."""
    return max(1, min(rows, int(_BATCH * (most_bytes - _FRAME_BYTES)) // _FURTHER_BYTES))


@dataclass(slots=True, kw_only=True)
class TailBook:
    """Makes and checks the progress records of one attempt, from the state of its buffer."""

    buffer: LogBuffer
    outbox_id: str
    term: str
    # The timeline from IDENTIFY_SYSTEM. The one of the last checkpoint may be out of date for minutes.
    timeline: Callable[[], int]
    # The largest size of one record.
    most_bytes: int = 900_000
    # The part of the WAL that was read without a gap.
    span: Callable[[], LogSpan] = lambda: UNKNOWN
    monotonic: Callable[[], float] = time.monotonic
    _origin: TailOrigin | None = None
    # The origin of the last record that recovery found, and the number of the first record of this attempt.
    _found: TailOrigin | None = None
    _first: int | None = None
    # When the last record was made.
    _made: float = float("-inf")

    def opened(self, control: Control) -> None:
        """Use the control row that recovery read as the origin of our records."""
        self._origin = TailOrigin(
            outbox_id=self.outbox_id,
            system_id=control.system_id,
            timeline=self.timeline(),
            term=self.term,
        )

    def record(self, number: int, rows: Rows, failures: int) -> TailProgress:
        """Return the record of a transaction that carries these rows."""
        if self._origin is None:
            raise AssertionError("recover first")
        self._made = self.monotonic()
        if self._first is None:
            self._first = number
        ids, fates = rows.ids, rows.fates
        dead: Mapping[Position, DeadChange] = {}
        coverage = self.buffer.after(ids)
        if rows.has_dead:
            pairs = zip(ids, fates, strict=True)
            dead = self.buffer.dead_of([(id_, fate) for id_, fate in pairs if isinstance(fate, Dead)])
            coverage = Coverage(
                position=coverage.position,
                waiting=coverage.waiting,
                dead={**coverage.dead, **{position: each.fate for position, each in dead.items()}},
                noted=coverage.noted,
                committed_us=coverage.committed_us,
            )
        return TailProgress(
            origin=self._origin,
            number=number,
            failures=failures,
            coverage=coverage,
            span=self.span(),
            ids=ids,
            create_times=rows.create_times,
            fates=fates,
            dead=dead,
        )

    def fitting(self, rows: Rows) -> int:
        """Return how many of the rows, from the first on, fit into one record. At least one."""
        if not rows.has_dead:
            return len(rows)
        room = _DEAD * (self.most_bytes - _FRAME_BYTES)
        for place, row in enumerate(rows):
            if isinstance(row.plan, Dead):
                room -= _DEAD_BYTES + len(json.dumps(row.plan.reason))
            if room < 0:
                return max(place, 1)
        return len(rows)

    def require_ours(self, records: Iterable[TailProgress]) -> None:
        """Check the records that recovery found. Raises `ForeignProgress` if one is of another outbox."""
        for record in records:
            self._found = record.origin
            if record.origin.outbox_id != self.outbox_id:
                raise ForeignProgress(
                    f"the progress topic holds records of another outbox ({record.origin.outbox_id}): "
                    "two outboxes on one broker need different names"
                )

    def wrote(self, record: TailProgress) -> bool:
        """Whether this attempt wrote a record that recovery found."""
        return self._first is not None and record.number >= self._first

    def inherits(self) -> bool:
        """Whether the last record that recovery found is of another term, or of another timeline of the WAL."""
        return self._found is not None and self._found != self._origin

    def wants_note(self) -> bool:
        """Whether to write a record without rows: dead changes are written by now, or the slot may be confirmed."""
        coverage = self.buffer.coverage
        if coverage.dead and not self.buffer.has_unwritten_dead:
            return True
        if self.monotonic() < self._made + _NOTE_SECONDS:
            return False
        quiet_at = self.buffer.quiet_at
        return quiet_at is not None and quiet_at > coverage.noted

    def wants_horizon(self, records: Sequence[TailProgress]) -> bool:  # noqa: ARG002 - of no record
        """Whether more than the last record has to be settled. Never: records are cumulative."""
        return False


def encode(progress: TailProgress) -> bytes:
    """Return the record as bytes."""
    origin, coverage = progress.origin, progress.coverage
    metadata = {
        "version": _VERSION,
        "outbox_id": origin.outbox_id,
        "system_id": origin.system_id,
        "timeline": str(origin.timeline),
        "term": origin.term,
        "number": str(progress.number),
        "failures": str(progress.failures),
        "position": json.dumps(coverage.position),
        "noted": str(coverage.noted),
        "committed_us": str(coverage.committed_us),
        "published": progress.span.published,
        "first_xid": str(progress.span.first_xid),
    }
    if coverage.dead:
        metadata["dead"] = json.dumps([(*position, *fate) for position, fate in coverage.dead.items()])
    waiting = packed(sorted(coverage.waiting))
    column = pa.Array.from_buffers(pa.uint8(), len(waiting), [None, pa.py_buffer(waiting)])
    rows = pa.record_batch([column], schema=_SCHEMA.with_metadata(metadata))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes) -> TailProgress:
    """Return the record, without the rows that it carried. Raises `ForeignProgress` if no tail wrote it."""
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            if metadata.get("version") not in {_VERSION, _BEFORE}:
                raise ForeignProgress(
                    f"a progress record has version {metadata.get('version')!r}, this program knows {_VERSION}: "
                    "a newer Thresher wrote it, so use that one"
                )
            batch = reader.read_next_batch()
        waiting = _waiting(batch)
        dead = {
            Position(commit, change, place): Dead(Kind(kind), reason, attempts, blocking)
            for commit, change, place, kind, reason, attempts, blocking in json.loads(metadata.get("dead", "[]"))
        }
        return TailProgress(
            origin=TailOrigin(
                outbox_id=metadata["outbox_id"],
                system_id=metadata["system_id"],
                timeline=int(metadata["timeline"]),
                term=metadata["term"],
            ),
            number=int(metadata["number"]),
            failures=int(metadata["failures"]),
            coverage=Coverage(
                position=Position(*json.loads(metadata["position"])),
                waiting=frozenset(waiting),
                dead=dead,
                noted=int(metadata["noted"]),
                committed_us=int(metadata["committed_us"]),
            ),
            span=LogSpan(published=metadata["published"], first_xid=int(metadata["first_xid"])),
        )
    except (pa.ArrowInvalid, KeyError, OSError, ValueError, IndexError, TypeError, StopIteration) as error:
        raise ForeignProgress(
            f"a record on the progress topic is not one of a tail's ({type(error).__name__}): the topic must be the "
            "tail's alone"
        ) from error


def _waiting(batch: pa.RecordBatch) -> Iterable[Position]:
    """Return the waiting positions of a record of this version, or of the one before."""
    if batch.num_columns == 1:
        return unpacked(bytes(batch.column(0).to_pylist()))
    return [Position(*each) for each in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
