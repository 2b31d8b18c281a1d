"""A stream of the WAL from a replication slot. It keeps sending status reports even while its rows cannot be published.

1. One thread owns the connection. It receives, decodes, and puts chunks into a bounded queue.
2. While the queue is full, it does not read from the socket; the server waits, and keeps the WAL.
3. It reports once a second, and at once when the server asks. Without reports, the server would end the connection
   after `wal_sender_timeout`.
4. A report says how far data was received. A position is confirmed once, by a report of its own; other reports confirm
   nothing. So a server that shuts down waits until all was received, not until all was published.
A crash at any point loses nothing: the server sends every transaction again that was not confirmed, as a whole.
"""

import contextlib
import select
import threading
import time
from collections.abc import Callable

from thresher.core.secrets import SecretText
from thresher.db.postgres.replication.connection import ReplicationConnection, SlotBusy, SystemIdentity
from thresher.spark.wakeup_pipe import WakeupPipe
from thresher.tail.chunk import Chunk
from thresher.tail.chunk_queue import ChunkQueue
from thresher.tail.log_reader import LogReader, RefusedMessage
from thresher.tail.log_seal import LogKeys
from thresher.tail.log_source import LogSource, Source
from thresher.tail.pgoutput import status_report

_REPORT_SECONDS, _ENCRYPTED_SECONDS = 1.0, 0.02
# The size at which a chunk is handed over while more is received: large enough that the hand-over costs little.
_PART_ROWS, _PART_BYTES = 500, 256 * 2**10
# The time that the server may need to notice that the slot's last reader is gone.
_BUSY_SECONDS, _ASK_AGAIN_SECONDS = 5.0, 0.1


class LogStream:
    """Reads a slot; owns the connection and its thread.

    Raises `DatabaseRefused` or `DatabaseLost`: the constructor if the stream cannot begin, `read` if it ends.
    """

    def __init__(
        self,
        dsn: SecretText,
        *,
        application: str,
        slot: str,
        publication: str,
        source: Source,
        keys: LogKeys | None = None,
        most_rows: int = 20_000,
        most_bytes: int = 16 * 2**20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keys`: those that messages are sealed with, for a source without a table."""
        self._reader = LogReader(source, keys)
        self._clock = clock
        self._wakeup = WakeupPipe()
        self._queue = ChunkQueue(most_rows, most_bytes, self._wakeup.wake)
        self._confirmed = self._reported = 0
        self._closing = False
        # `identity` is the system that streams, and its timeline.
        self._connection, self.identity = _started(
            dsn, application, slot, publication, messages=isinstance(source, LogSource)
        )
        self._thread = threading.Thread(target=self._run, name=f"log of {slot}", daemon=True)
        self._thread.start()

    def read(self, rows: int, bytes_: int, seconds: float) -> Chunk | None:
        """Return the next rows, at once if there are any: at most `rows`, and about `bytes_`.

        Without rows within `seconds`: a chunk that only says how far the WAL was read, or None if that has not
        changed. For one thread at a time.
        """
        return self._queue.take(rows, bytes_, seconds)

    @property
    def waiting_rows(self) -> int:
        """The number of rows that were received and not read yet."""
        return self._queue.rows

    def confirm(self, lsn: int) -> None:
        """Confirm the slot up to this position, within a second. It never moves back. For any thread.

        The server may discard the WAL before it.
        """
        self._confirmed = max(self._confirmed, lsn)

    @property
    def refused(self) -> tuple[int, RefusedMessage | None]:
        """How many messages were not published because the outbox's function did not write them, and the last one."""
        return self._reader.refused, self._reader.last_refused

    @property
    def server_position(self) -> int:
        """The highest position that the server has reported for this stream."""
        return self._reader.received

    def close(self) -> None:
        """Send a last confirmation if possible, close the connection, and wait for the thread.

        The server releases the slot a moment later.
        """
        self._closing = True
        self._wakeup.wake()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        try:
            self._receive()
        except BaseException as error:  # noqa: BLE001 - raised again by `read`, in the thread that can act on it
            self._queue.fail(error)

    def _receive(self) -> None:
        due = 0.0
        unsent = received = False
        # TLS may hold decrypted bytes that poll does not see: look again soon.
        longest = _ENCRYPTED_SECONDS if self._connection.encrypted else _REPORT_SECONDS
        while not self._closing:
            wanted = 0 if self._queue.full else select.POLLIN
            idle = 0.0 if received else min(longest, due - time.monotonic())
            self._wait(wanted | (select.POLLOUT if unsent else 0), idle)
            received = bool(wanted) and self._receive_frames()
            if self._reader.reply or time.monotonic() >= due:
                self._report()
                due = time.monotonic() + _REPORT_SECONDS
            unsent = self._connection.flush()
        if self._confirmed > self._reported:
            self._report()
            with contextlib.suppress(Exception):  # the connection closes anyway; unconfirmed changes are sent again
                self._connection.flush()

    def _wait(self, events: int, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if events:
            # Without events, poll would still return at once, again and again, if the server has closed the connection.
            poll.register(self._connection, events)
        poll.poll(max(0.0, seconds) * 1000)
        self._wakeup.drain()

    def _receive_frames(self) -> bool:
        """Read the frames that have come, until the queue is full; return whether there were any."""
        reader, queue = self._reader, self._queue
        feed = reader.feed
        frame = None
        try:
            for frame in self._connection.receive():
                feed(frame)
                if reader.rows >= _PART_ROWS or reader.size >= _PART_BYTES:
                    self._hand_over()
                    if queue.full:
                        break
        finally:
            # Hand over also the rows that came before the stream ended.
            self._hand_over()
        return frame is not None

    def _hand_over(self) -> None:
        chunk = self._reader.take()
        if chunk is not None:
            self._queue.put(chunk)

    def _report(self) -> None:
        received, now = self._reader.received, int(self._clock() * 1_000_000)
        self._reader.reply = False
        if (confirmed := self._confirmed) > self._reported:
            self._connection.send(status_report(received, confirmed, now))
            self._reported = confirmed
        self._connection.send(status_report(received, 0, now))


def _started(
    dsn: SecretText, application: str, slot: str, publication: str, *, messages: bool
) -> tuple[ReplicationConnection, SystemIdentity]:
    """Return a connection that streams. If another session still reads the slot, wait a moment for its end."""
    deadline = time.monotonic() + _BUSY_SECONDS
    connection = ReplicationConnection(dsn, application)
    try:
        identity = connection.identify()
        while True:
            try:
                connection.start(slot, publication, messages=messages)
            except SlotBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_ASK_AGAIN_SECONDS)
            else:
                return connection, identity
    except BaseException:
        connection.close()
        raise
