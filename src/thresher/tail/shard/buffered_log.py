"""A tail's `RowSource`: reads the WAL into the buffer, and returns rows from the buffer.

Dead changes that the last record names are written to the dead table here when the server sends them again. No row is
returned before that.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa

from thresher.delivery.reading.row_source import ReadRequest
from thresher.delivery.stored_rows import FewRows, OrderedRows, batch_of, micros
from thresher.tail.buffer import DeadChange, LogBuffer
from thresher.tail.stream import LogStream

# A read without rows returns after this time, since the caller's next request may differ.
_LOOK_SECONDS = 0.05


class BufferedLog:
    """The rows of one stream. For one thread. `set_aside` writes rows to the dead table, durably."""

    def __init__(
        self,
        stream: LogStream,
        buffer: LogBuffer,
        set_aside: Callable[[Sequence[DeadChange]], None],
        *,
        columns: bool,
    ) -> None:
        """`columns`: return record batches, for transforms."""
        self._stream, self._buffer, self._set_aside, self._columns = stream, buffer, set_aside, columns

    def read(self, request: ReadRequest) -> pa.RecordBatch | FewRows | None:
        """Return the oldest rows that the request allows; None if there are none at the moment."""
        self._fill(request.rows, 0.0)
        found, size = self._buffer.take(request)
        if not found:
            if self._buffer.room == (0, 0):
                self._buffer.await_room(_LOOK_SECONDS)
            else:
                self._fill(request.rows, _LOOK_SECONDS)
            found, size = self._buffer.take(request)
        if not found:
            return None
        if self._columns:
            return batch_of(found)
        return OrderedRows(found, size, [micros(row[1]) for row in found])

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _fill(self, rows: int, seconds: float) -> None:
        """Read up to `rows` rows, as far as there is room; wait up to `seconds` for the first."""
        while rows > 0:
            most, size = self._buffer.room
            if not most:
                return
            chunk = self._stream.read(min(most, rows), size, seconds)
            if chunk is None:
                return
            if dead := self._buffer.add(chunk):
                self._set_aside(dead)
            self._buffer.dead_written()
            if not chunk.rows:
                return
            rows -= len(chunk.rows)
            seconds = 0.0
