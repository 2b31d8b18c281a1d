"""The progress record: written in the same Kafka transaction as the rows it speaks of, so it is committed if they are.

It holds for each row its id, its create time and its fate, and says whose it is: the outbox's id, the database's
incarnation, the term, the shard, and the transaction's number. Nothing but a committed progress record removes a row.
On the wire it is one Arrow batch, so that ten thousand rows cost one call.
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
# As many as a transaction of the database settles at ease.
_MERGED_ROWS = 20_000
# What a record takes at most: schemas and metadata, then each row, then each dead row beside its reason.
_FRAME_BYTES, _ROW_BYTES, _DEAD_BYTES = 4_096, 20, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose progress it is, and on which incarnation of the database the rows were read."""

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
    # Rows that transforms failed on in a row, up to and including this transaction.
    failures: int = 0

    @property
    def all_sent(self) -> bool:
        """Whether every row was sent, as most are. Costs no more than one look through the list."""
        return self.fates.count(SENT) == len(self.fates)


def progress_of(origin: Origin, number: int, rows: Rows, failures: int) -> Progress:
    """Return the record of a transaction that carries these rows."""
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
    """Makes and judges the progress records of one shard of one outbox. Recovery names its origin first."""

    outbox_id: str
    term: str
    shard: int
    # The largest that one record may be.
    most_bytes: int = 900_000
    _origin: Origin | None = None

    def opened(self, control: Control) -> None:
        """Take in the control row that recovery read."""
        self._origin = Origin(
            outbox_id=self.outbox_id,
            system_id=control.system_id,
            incarnation=control.incarnation,
            term=self.term,
            shard=self.shard,
        )

    def record(self, number: int, rows: Rows, failures: int) -> Progress:
        """Return the record of a transaction that carries these rows."""
        return progress_of(self._opened(), number, rows, failures)

    def fitting(self, rows: Rows) -> int:
        """Return how many of the rows, from the first, fit into one record: one at least."""
        return fitting(rows, self.most_bytes)

    def require_ours(self, records: Iterable[Progress]) -> None:
        """Raise `ForeignProgress` if a record is another outbox's."""
        for record in records:
            if record.origin.outbox_id != self.outbox_id:
                raise ForeignProgress(
                    f"the progress topic holds records of another outbox ({record.origin.outbox_id}): "
                    "two outboxes on one broker need different names"
                )

    def wants_horizon(self, records: Sequence[Progress]) -> bool:
        """Whether the database is not the incarnation that the last record speaks of."""
        return bool(records) and records[-1].origin.incarnation != self._opened().incarnation

    def _opened(self) -> Origin:
        if self._origin is None:
            raise AssertionError("recover first")
        return self._origin


def merged(records: Iterable[Progress]) -> Iterator[Progress]:
    """Yield the same fates in fewer records: an hour of small transactions is settled in a few large ones."""
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
    """Return how many of the rows, from the first, fit into one record of at most so many bytes: one at least."""
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


def is_progress(data: bytes) -> bool:
    """Whether it is the content of a relay's progress record."""
    try:
        decode(data)
    except ForeignProgress:
        return False
    return True


def _codes(progress: Progress) -> bytes:
    if progress.all_sent:
        return bytes([_SENT]) * len(progress.fates)
    return bytes(_SENT if isinstance(f, Sent) else _DEAD if isinstance(f, Dead) else _FILTERED for f in progress.fates)


def _numbers(kind: pa.DataType, code: str, values: Sequence[int]) -> pa.Array:
    """Return numbers as a column, without a look at each of them."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def decode(data: bytes) -> Progress:
    """Return the record; raises `ForeignProgress` where it is not one of ours."""
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            if metadata.get("version") != _VERSION:
                raise ForeignProgress(
                    f"a progress record has version {metadata.get('version')!r}, this program knows {_VERSION}: "
                    "a newer Thresher wrote it, so use that one"
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
            f"a record on the progress topic is not one of ours ({type(error).__name__}): the topic must be the "
            "relay's alone"
        ) from error
