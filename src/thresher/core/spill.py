"""Byte strings on disk that do not fit in memory: in a temporary file that ends with the process.

The file is an SQLite database in a directory that only this user may enter. Both have no name any more once the file is
open, so nobody else can open it, and nothing of it is left after a crash. It is no durable storage: whoever spills must
be able to make the contents again. Freed space is used again, and an empty file is given back.
"""

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from thresher.core.errors import ThresherError, Trouble

_PAGE_BYTES = 4_096
# An empty file that is smaller is kept, because the next content may come at once.
_LEAST_GIVEN_BACK = 16 << 20
# In an exclusive session whose journal and temporary tables are in memory, SQLite needs no second file. A result that
# is not durable needs no sync, and what other users cannot read needs no overwriting.
_PRAGMAS = (
    f"page_size = {_PAGE_BYTES}", "auto_vacuum = NONE", "locking_mode = EXCLUSIVE", "journal_mode = MEMORY",
    "temp_store = MEMORY", "synchronous = OFF", "secure_delete = OFF", "mmap_size = 0",
)  # fmt: skip


class SpillFull(ThresherError):  # noqa: N818
    """The file cannot grow: its bound is reached, or the disk is full. Nothing was stored, and the rest is kept."""


class SpillLost(Trouble):
    """What was spilled cannot be read again. A retry begins with an empty file."""


class Spill:
    """Byte strings in one temporary file of at most `most_bytes`, in `directory` or the system's. For one thread."""

    def __init__(self, most_bytes: int, directory: str | None = None) -> None:
        """Open no file yet."""
        self.most_bytes, self._directory = most_bytes, directory
        self._file: sqlite3.Connection | None = None
        self._held = 0

    def __len__(self) -> int:
        return self._held

    @property
    def bytes_on_disk(self) -> int:
        """The size of the file."""
        return self._pages("page_count") * _PAGE_BYTES

    @property
    def bytes_taken(self) -> int:
        """The part of the file that cannot be used again yet."""
        return (self._pages("page_count") - self._pages("freelist_count")) * _PAGE_BYTES

    def put(self, content: bytes) -> int:
        """Store a content, and return its place. Raises `SpillFull`."""
        try:
            if self._file is None:
                self._file = _opened(self._directory, self.most_bytes)
            place = self._file.execute("INSERT INTO spilled (content) VALUES (?)", (content,)).lastrowid
        except (sqlite3.Error, OSError) as error:
            where = self._directory or tempfile.gettempdir()
            raise SpillFull(
                f"the temporary file in {where} cannot grow beyond {self.bytes_on_disk >> 20} MB, of at most "
                f"{self.most_bytes >> 20}: {error}"
            ) from error
        self._held += 1
        return place or 0

    def get(self, place: int) -> bytes:
        """Return the content at this place. Raises `SpillLost`."""
        try:
            found = self._open.execute("SELECT content FROM spilled WHERE place = ?", (place,)).fetchone()
        except sqlite3.Error as error:
            raise SpillLost(f"the temporary file cannot be read: {error}") from error
        if found is None:
            raise SpillLost(f"the temporary file has nothing at place {place}")
        content: bytes = found[0]
        return content

    def forget(self, place: int) -> None:
        """Free a place. Raises `SpillLost`."""
        try:
            self._held -= self._open.execute("DELETE FROM spilled WHERE place = ?", (place,)).rowcount
        except sqlite3.Error as error:
            raise SpillLost(f"the temporary file cannot be changed: {error}") from error
        if not self._held and self.bytes_on_disk >= _LEAST_GIVEN_BACK:
            self.close()

    def close(self) -> None:
        """Give the file back with everything in it. Harmless when repeated."""
        if self._file is not None:
            self._file.close()
        self._file, self._held = None, 0

    def _pages(self, which: str) -> int:
        return 0 if self._file is None else int(self._file.execute(f"PRAGMA {which}").fetchone()[0])

    @property
    def _open(self) -> sqlite3.Connection:
        if self._file is None:
            raise SpillLost("the temporary file is closed")
        return self._file


def _opened(directory: str | None, most_bytes: int) -> sqlite3.Connection:
    """Open a new file, and remove its name."""
    closed = Path(tempfile.mkdtemp(prefix="thresher-spill-", dir=directory))
    try:
        path = closed / "spilled"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(path, isolation_level=None)
        try:
            for pragma in _PRAGMAS:
                file.execute(f"PRAGMA {pragma}")
            file.execute(f"PRAGMA max_page_count = {max(2, most_bytes // _PAGE_BYTES)}")
            # Takes the lock, which is held until the file is closed: from now on the name is not needed.
            file.execute("CREATE TABLE spilled (place INTEGER PRIMARY KEY, content BLOB NOT NULL)")
        except BaseException:
            file.close()
            raise
    finally:
        shutil.rmtree(closed, ignore_errors=True)
    return file
