"""A directory of archive files: which one it is, and that its files are there for good before anybody relies on them.

1. A hidden file has the directory's id. Manifests name it, so that a batch is never gone on with in another directory
   that has the same path: on another machine, or where nothing is mounted.
2. A file is written under another name, flushed to the disk, and renamed; then the directory is flushed.
3. No name is used twice. A file that has its name is never written to again.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from thresher.archive.batch import PART
from thresher.archive.problem import ArchiverBusy, ArchiveRefused, ArchiveTrouble

_MARK = ".thresher-archive"
# What somebody has to act on; anything else, such as a full disk, time may mend.
_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ENOTSUP, errno.ELOOP}
)


class ArchiveDirectory:
    """A directory that can be written to. Made where only the last part of its path is missing."""

    def __init__(self, path: Path) -> None:
        """Raises `ArchiveRefused` where it cannot be used."""
        self.path = path
        with explained(path):
            if not path.is_dir():
                path.mkdir()
            self.id = _identity(path)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, where they are there."""
        with explained(self.path):
            for name in names:
                (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def unfinished(self, name: str) -> Iterator[BinaryIO]:
        """Give a new file to write to, and flush it to the disk. It has no name yet, and is removed after an error."""
        part = self.path / f"{name}{PART}"
        try:
            with explained(part), part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def name_it(self, name: str) -> None:
        """Give a file that was flushed its name, for good. Raises `ArchiverBusy` where another archiver removed it."""
        with explained(self.path / name):
            try:
                (self.path / f"{name}{PART}").rename(self.path / name)
            except FileNotFoundError as error:
                raise ArchiverBusy(f"another archiver has removed {name}{PART}, to write its batch anew") from error
            _flush(self.path)


def id_of(path: Path) -> UUID | None:
    """Return which directory this is; None where it is none of an archive's."""
    try:
        return UUID((path / _MARK).read_text().strip())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise errors of the file system as `ArchiveRefused` or `ArchiveTrouble`."""
    try:
        yield
    except OSError as error:
        why = f"{path} cannot be used for the archive: {error.strerror or error}"
        if error.errno in _REFUSED:
            raise ArchiveRefused(f"{why}; make it a directory that this user can write to") from error
        raise ArchiveTrouble(f"{why}; no row has left the outbox for it, run it again once that is mended") from error


def _identity(path: Path) -> UUID:
    if (known := id_of(path)) is not None:
        # Whether it can be written to is known before a batch is begun.
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it is not writable for this user")
        return known
    made = uuid.uuid4()
    draft = path / f"{_MARK}-{made.hex}"
    try:
        with draft.open("x") as file:
            file.write(f"{made}\n")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, it does not replace the mark that another archiver has just made.
        with contextlib.suppress(FileExistsError):
            (path / _MARK).hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    _flush(path)
    found = id_of(path)
    if found is None:
        raise OSError(errno.EIO, f"its file {_MARK} cannot be read, or is damaged")
    return found


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
