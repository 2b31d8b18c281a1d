"""The progress record of a transaction: written in the same transaction as its rows, so it is committed if they are.

It holds the id, the create time and the fate of each row, and its origin: the outbox's id, the database's incarnation,
the term, the shard and the transaction's number. Only a committed progress record removes a row. It is encoded as one
Arrow batch, so that ten thousand rows cost one call.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from thresher.delivery.effects import Control
from thresher.delivery.fate import FILTERED, SENT, Dead, Fate, Kind, Sent
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.row import Rows

_VERSION = "1"
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("create_time", pa.int64()),
        ("fate", pa.int8()),
    ]
)
_SENT, _FILTERED, _DEAD = range(3)
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("lz4"))
# The rows of a merged record: as many as one database transaction can easily settle.
_MERGED_ROWS = 20_000
# Upper bounds of a record's size: schema and metadata; each row; each dead row, without its reason.
_FRAME_BYTES, _ROW_BYTES, _DEAD_BYTES = 4_096, 20, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which shard of which outbox wrote the record, under which term, and on which incarnation of the database."""

    outbox_id: str
    system_id: str
    incarnation: str
    term: str
    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One transaction's rows and their fates, in the order in which they were taken."""

    origin: Origin
    number: int
    ids: Sequence[int] = ()
    create_times: Sequence[int] = ()
    fates: Sequence[Fate] = ()
    # Consecutive rows on which transforms failed, up to and including this transaction.
    failures: int = 0

    @property
    def all_sent(self) -> bool:
        """Whether every row was sent."""
        return self.fates.count(SENT) == len(self.fates)


def progress_of(origin: Origin, number: int, rows: Rows, failures: int) -> Progress:
    """Return the progress record of a transaction with these rows."""
    return Progress(
        origin=origin,
        number=number,
        ids=rows.ids,
        create_times=rows.create_times,
        fates=rows.fates,
        failures=failures,
    )


@dataclass(slots=True, kw_only=True)
class OutboxProgress:
    """Makes and checks the progress records of one shard. Recovery must call `opened` first."""

    outbox_id: str
    term: str
    shard: int
    # The largest size of one record.
    most_bytes: int = 900_000
    _origin: Origin | None = None

    def opened(self, control: Control) -> None:
        """Remember the control row that recovery read: it is the origin of all records from now on."""
        self._origin = Origin(
            outbox_id=self.outbox_id,
            system_id=control.system_id,
            incarnation=control.incarnation,
            term=self.term,
            shard=self.shard,
        )

    def record(self, number: int, rows: Rows, failures: int) -> Progress:
        """Return the progress record of a transaction with these rows."""
        return progress_of(self._opened(), number, rows, failures)

    def fitting(self, rows: Rows) -> int:
        """Return how many of the rows, from the first, fit into one record: at least one."""
        return fitting(rows, self.most_bytes)

    def require_ours(self, records: Iterable[Progress]) -> None:
        """Raise `ForeignProgress` if a record belongs to another outbox."""
        for record in records:
            if record.origin.outbox_id != self.outbox_id:
                raise ForeignProgress(
                    f"the progress topic holds records of another outbox ({record.origin.outbox_id}): "
                    "give the relays of two outboxes different names"
                )

    def wants_horizon(self, records: Sequence[Progress]) -> bool:
        """Whether the database's incarnation has changed since the last record was written."""
        return bool(records) and records[-1].origin.incarnation != self._opened().incarnation

    def _opened(self) -> Origin:
        if self._origin is None:
            raise AssertionError("recover first")
        return self._origin


def merged(records: Iterable[Progress]) -> Iterator[Progress]:
    """Yield the same fates in fewer records, so that an hour of small transactions is settled in a few large ones."""
    waiting: list[Progress] = []
    rows = 0
    for record in records:
        if waiting and (
            rows + len(record.ids) > _MERGED_ROWS or record.origin.outbox_id != waiting[0].origin.outbox_id
        ):
            yield _together(waiting)
            waiting, rows = [], 0
        waiting.append(record)
        rows += len(record.ids)
    if waiting:
        yield _together(waiting)


def _together(records: Sequence[Progress]) -> Progress:
    last = records[-1]
    return replace(
        last,
        ids=[each for record in records for each in record.ids],
        create_times=[each for record in records for each in record.create_times],
        fates=[each for record in records for each in record.fates],
    )


def fitting(rows: Rows, limit: int) -> int:
    """Return how many of the rows, from the first, fit into one record of at most `limit` bytes: at least one."""
    room = limit - _FRAME_BYTES
    if not rows.has_dead:
        return min(len(rows), max(room // _ROW_BYTES, 1))
    for place, row in enumerate(rows):
        room -= _ROW_BYTES
        if isinstance(row.plan, Dead):
            room -= _DEAD_BYTES + len(json.dumps(row.plan.reason))
        if room < 0:
            return max(place, 1)
    return len(rows)


def encode(progress: Progress) -> bytes:
    """Return the record as bytes."""
    origin = progress.origin
    metadata = {
        "version": _VERSION,
        "outbox_id": origin.outbox_id,
        "system_id": origin.system_id,
        "incarnation": origin.incarnation,
        "term": origin.term,
        "shard": str(origin.shard),
        "number": str(progress.number),
        "failures": str(progress.failures),
    }
    codes = _codes(progress)
    if _DEAD in codes:
        dead = [(place, *fate) for place, fate in enumerate(progress.fates) if isinstance(fate, Dead)]
        metadata["dead"] = json.dumps(dead)
    rows = pa.record_batch(
        [
            _numbers(pa.int64(), "q", progress.ids),
            _numbers(pa.int64(), "q", progress.create_times),
            _numbers(pa.int8(), "b", codes),
        ],
        schema=_SCHEMA.with_metadata(metadata),
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _codes(progress: Progress) -> bytes:
    if progress.all_sent:
        return bytes([_SENT]) * len(progress.fates)
    return bytes(_SENT if isinstance(f, Sent) else _DEAD if isinstance(f, Dead) else _FILTERED for f in progress.fates)


def _numbers(kind: pa.DataType, code: str, values: Sequence[int]) -> pa.Array:
    """Return numbers as an Arrow column, copied as one buffer."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def decode(data: bytes) -> Progress:
    """Return the record. Raises `ForeignProgress` if the bytes are no progress record, or a newer version's."""
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            if metadata.get("version") != _VERSION:
                raise ForeignProgress(
                    f"a progress record has version {metadata.get('version')!r}, this program knows {_VERSION}: "
                    "a newer Thresher wrote it; use that version"
                )
            batch = reader.read_next_batch()
        fates: list[Fate] = [FILTERED if code == _FILTERED else SENT for code in batch.column(2).to_pylist()]
        for place, kind, reason, attempts, blocking in json.loads(metadata.get("dead", "[]")):
            fates[place] = Dead(Kind(kind), reason, attempts, blocking)
        return Progress(
            origin=Origin(
                outbox_id=metadata["outbox_id"],
                system_id=metadata["system_id"],
                incarnation=metadata["incarnation"],
                term=metadata["term"],
                shard=int(metadata["shard"]),
            ),
            number=int(metadata["number"]),
            ids=batch.column(0).to_pylist(),
            create_times=batch.column(1).to_pylist(),
            fates=fates,
            failures=int(metadata["failures"]),
        )
    except (pa.ArrowInvalid, KeyError, OSError, ValueError, IndexError, TypeError, StopIteration) as error:
        raise ForeignProgress(
            f"a record on the progress topic is no progress record ({type(error).__name__}): no other program may "
            "write to this topic"
        ) from error
