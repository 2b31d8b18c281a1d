"""Ordered queue of chunks from the thread that reads the WAL to the one that publishes, bounded in rows and bytes."""

import threading
import time
from collections import deque
from collections.abc import Callable

from thresher.tail.chunk import Chunk


class ChunkQueue:
    """For one thread that puts and one that takes. A failure is raised after the chunks that were put before it.

    `on_room` is called in the taking thread when a full queue has room again.
    """

    def __init__(self, most_rows: int, most_bytes: int, on_room: Callable[[], None]) -> None:
        self._most_rows, self._most_bytes, self._on_room = most_rows, most_bytes, on_room
        self._changed = threading.Condition()
        self._parts: deque[Chunk] = deque()
        # The number of rows that wait to be taken, and their bytes.
        self.rows = self._bytes = 0
        # The end of the last commit whose rows were all taken.
        self._ended = 0
        self._error: BaseException | None = None

    def __len__(self) -> int:
        """The number of chunks that wait to be taken."""
        return len(self._parts)

    @property
    def full(self) -> bool:
        """Whether the putting thread should wait."""
        return self.rows >= self._most_rows or self._bytes >= self._most_bytes

    def put(self, chunk: Chunk) -> None:
        """Add a chunk. Never blocks: the caller checks `full` before it reads more."""
        with self._changed:
            last = self._parts[-1] if self._parts else None
            if last is not None and not chunk.rows:
                # Chunks without rows are merged, so that they take no room however long nobody takes them.
                last.ended = chunk.ended
                last.idle_at = last.idle_at if chunk.idle_at is None else chunk.idle_at
                return
            if last is not None and not last.rows:
                self._parts.pop()
            self._parts.append(chunk)
            self.rows += len(chunk.rows)
            self._bytes += chunk.size
            if chunk.rows:
                self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """Let `take` raise this error once all rows were taken."""
        with self._changed:
            self._error = error
            self._changed.notify()

    def take(self, rows: int, bytes_: int, seconds: float) -> Chunk | None:
        """Return the next rows; without any for `seconds`, a chunk without rows or None. Raises the error of `fail`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self.rows:
                if self._error is not None:
                    raise self._error
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            was_full = self.full
            taken = self._next(rows, bytes_)
        if was_full and not self.full:
            self._on_room()
        return taken

    def _next(self, rows: int, bytes_: int) -> Chunk | None:
        before = self._ended
        taken = Chunk(ended=before)
        while self._parts and len(taken.rows) < rows and taken.size < bytes_:
            part = self._parts[0]
            room = rows - len(taken.rows)
            if len(part.rows) > room:
                _append(taken, _cut(part, room))
                break
            self._parts.popleft()
            _append(taken, part)
            taken.ended = self._ended = part.ended
            taken.idle_at = part.idle_at
        self.rows -= len(taken.rows)
        self._bytes -= taken.size
        return taken if taken.rows or taken.idle_at is not None or taken.ended != before else None


def _append(chunk: Chunk, part: Chunk) -> None:
    chunk.positions += part.positions
    chunk.rows += part.rows
    chunk.commit_times += part.commit_times
    chunk.size += part.size


def _cut(part: Chunk, rows: int) -> Chunk:
    """Remove the first rows from a part, and return them with their share of its bytes."""
    size = part.size * rows // len(part.rows)
    first = Chunk(
        positions=part.positions[:rows], rows=part.rows[:rows], commit_times=part.commit_times[:rows], size=size
    )
    del part.positions[:rows], part.rows[:rows], part.commit_times[:rows]
    part.size -= size
    return first
