"""Where pending rows come from: what is asked of a table, and what it answers.

`PendingRows` reads for exactly-once delivery and writes nothing; `Marking` marks what it reads. Both are read by one
thread, which `Prefetch` runs.
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
    """What to read: at most so many rows and bytes, without rows in flight and what is held.

    `in_flight` and `held_rows` map ids to create times, in microseconds. `generation` counts how often rows went back
    to the table.
    """

    rows: int
    bytes: int
    in_flight: Mapping[int, int]
    held: Collection[str] = ()
    held_keys: Collection[Key] = ()
    held_rows: Mapping[int, int] = field(default_factory=dict)
    generation: int = 0


class RowSource(Protocol):
    """Reads the oldest pending rows of one shard. For one thread."""

    def read(self, request: ReadRequest, /) -> pa.RecordBatch | FewRows | None:
        """Return rows in the order of each key; None if there are none."""

    def close(self) -> None:
        """Let go of connections."""
