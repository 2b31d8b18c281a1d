"""A directory of archive files: which one it is, and that its files are there for good before anybody relies on them.

1. A hidden file has the directory's id. Manifests name it, so that a batch is never gone on with in another directory
   that has the same path: on another machine, or where nothing is mounted.
2. A file is written under another name, flushed to the disk, and renamed; then the directory is flushed. A file that a
   crash has left is flushed again, with its directory: nobody knows how far the dead one came.
3. No name is used twice. A file that has its name is never written to again.
4. A directory that is made is flushed in the one above it before it gets its id: whatever has an id is durable.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from thresher.archive.batch import PART
from thresher.archive.durable import flush_file, flush_parent, flush_path
from thresher.archive.problem import ArchiverBusy, ArchiveRefused, ArchiveTrouble
from thresher.archive.target import Opening

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
                flush_file(file)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def name_it(self, name: str, middle: Callable[[], object] = lambda: None) -> None:
        """Give a file that was flushed its name, for good. Raises `ArchiverBusy` where another archiver removed it.

        `middle` is called when the file has its name, which may be gone after a power failure.
        """
        with explained(self.path / name):
            try:
                (self.path / f"{name}{PART}").rename(self.path / name)
            except FileNotFoundError as error:
                raise ArchiverBusy(f"another archiver has removed {name}{PART}, to write its batch anew") from error
            middle()
            flush_path(self.path)

    def flush(self, name: str) -> None:
        """Make a file durable that was found under its name. Raises `ArchiveTrouble` where that fails."""
        with explained(self.path / name):
            flush_path(self.path / name)
            flush_path(self.path)


def open_directory(path: Path, recorded: UUID | None, opening: Opening) -> ArchiveDirectory:
    """Return the directory for new files. `recorded` is the id of the one at that path that was used last, if any was.

    Raises `ArchiveRefused` where it is another one, as where nothing is mounted: files would go to the wrong disk.
    """
    found = id_of(path)
    if recorded is not None and found != recorded and opening is not Opening.ANEW:
        raise ArchiveRefused(
            f"{path} is not the directory that rows were archived to before: {recorded} was its id, and it has "
            f"{found or 'none'} now. Mount the right one; if it is lost, or another is meant, run 'thresher archive "
            "--new-directory' once"
        )
    if opening is Opening.EXISTING and not path.is_dir():
        raise ArchiveRefused(
            f"{path} cannot be used for the archive: it is no directory, and a relay makes none. Mount it; for a first "
            f"one, run 'mkdir' or 'thresher archive --to {path}'"
        )
    return ArchiveDirectory(path)


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
    flush_parent(path)
    made = uuid.uuid4()
    draft = path / f"{_MARK}-{made.hex}"
    try:
        with draft.open("x") as file:
            file.write(f"{made}\n")
            flush_file(file)
        # Unlike a rename, it does not replace the mark that another archiver has just made.
        with contextlib.suppress(FileExistsError):
            (path / _MARK).hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    flush_path(path)
    found = id_of(path)
    if found is None:
        raise OSError(errno.EIO, f"its file {_MARK} cannot be read, or is damaged")
    return found
