"""A stream of the log from a replication slot (being built: the signatures are final)."""

from thresher.tail.chunk import Chunk
from thresher.tail.log_source import Source


class LogStream:
    """Reads a slot; owns the connection and its thread.

    Raises `DatabaseRefused` or `DatabaseLost`, here if the stream cannot begin, and from `read` if it ends.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application: str,
        slot: str,
        publication: str,
        source: Source,
        most_rows: int = 20_000,
        most_bytes: int = 16 * 2**20,
    ) -> None:
        raise NotImplementedError

    def read(self, rows: int, bytes_: int, seconds: float) -> Chunk | None:
        """Return the next rows, at once if there are any; at most so many rows, and about so many bytes.

        Without rows within the time: a chunk that only says how far the log was read, or None if it says nothing new.
        For one thread at a time.
        """
        raise NotImplementedError

    def confirm(self, lsn: int) -> None:
        """Let the server forget the log before this position, within a second. Never moves back. For any thread."""
        raise NotImplementedError

    @property
    def server_position(self) -> int:
        """How far the server has read its log for this stream, as far as it said."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection, and wait for the thread; the slot is free from then on."""
        raise NotImplementedError
