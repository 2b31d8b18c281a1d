"""The port from which a shard reads its pending rows.

`PendingRows` reads for exactly-once delivery and writes nothing. `Marking` marks the rows that it reads. Each is used
by one thread, that of `Prefetch`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from thresher.delivery.stored_rows import FewRows

# A stored topic and key.
Key = tuple[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Asks for at most `rows` rows and `bytes` bytes, without the rows in flight and the held rows.

    `in_flight` and `held_rows` map ids to create times, in microseconds. `generation` counts how often the read-ahead
    was discarded.
    """

    rows: int
    bytes: int
    in_flight: Mapping[int, int]
    held: Collection[str] = ()
    # Only rows of the held topics are read. Otherwise, these are left out.
    among: bool = False
    # A few rows of topics whose rows are to be set aside are read between other reads.
    sweeping: bool = False
    held_keys: Collection[Key] = ()
    held_rows: Mapping[int, int] = field(default_factory=dict)
    generation: int = 0


class RowSource(Protocol):
    """Reads the oldest pending rows of one shard. For one thread."""

    def read(self, request: ReadRequest, /) -> pa.RecordBatch | FewRows | None:
        """Return rows, those of a key in their order; None if there are none."""

    def close(self) -> None:
        """Let go of connections."""
