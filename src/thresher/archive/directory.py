"""A directory of archive files: its identity, and how its files become durable before rows are removed.

1. A hidden file holds the directory's id, and manifests name that id. So a batch is never continued in another
   directory of the same path: on another machine, or if the disk is not mounted.
2. A file is written under a temporary name, flushed to disk, and renamed; then the directory is flushed. A file that a
   crash has left is flushed again, with its directory, since the crash may have come before the flush.
3. No name is used twice. A file under its final name is never written to again.
4. Files hold messages: their owner alone can read them, unless the directory has the set-group-id bit.
5. After a directory is created, its parent is flushed before it gets its id. So a directory with an id is durable.
6. Before rows are removed, the directory at the path still has the id, and the batch's file and the last thousand
   files of the run are found in it again, unchanged: somebody may have moved the directory, or mounted another one.
7. A name that comes from a manifest stays within the directory, whatever is written there.
"""

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from thresher.archive.batch import PART
from thresher.archive.durable import flush_file, flush_parent, flush_path
from thresher.archive.problem import ArchiverBusy, ArchiveRefused, ArchiveTrouble
from thresher.archive.target import Opening
from thresher.core.errors import shorten

_MARK = ".thresher-archive"
# How many files of a run are looked for again before each removal of rows.
_MOST_FINISHED = 1_000
# Errors that need an operator. Others, such as a full disk, may pass.
_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ENOTSUP, errno.ELOOP}
)


class ArchiveDirectory:
    """A writable directory. It is created if only the last part of its path is missing."""

    def __init__(self, path: Path) -> None:
        """Raises `ArchiveRefused` if the directory cannot be used."""
        self.path = path
        with explained(path):
            if not path.is_dir():
                path.mkdir(mode=0o700)
            self.id = _identity(path)
        # The last files that were made durable here, each with what identifies its content.
        self._finished: dict[str, tuple[int, ...]] = {}

    def place_of(self, name: str) -> Path:
        """Return the path of a file. Raises `ArchiveRefused` if the name would lead out of the directory."""
        if name in {"", ".", ".."} or "/" in name or "\0" in name:
            raise ArchiveRefused(
                f"{shorten(name)} is no name of an archive's file: another program has changed the manifests"
            )
        return self.path / name

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, if they exist."""
        with explained(self.path):
            for name in names:
                self.place_of(name).unlink(missing_ok=True)
                self._finished.pop(name, None)

    def require_kept(self) -> None:
        """Raise `ArchiveRefused` if another directory is at the path now, or a file that was finished has gone."""
        found = id_of(self.path)
        if found != self.id:
            raise ArchiveRefused(
                f"{self.path} was replaced during the run: its id was {self.id}, and is now {found or 'missing'}. No "
                "further row has left the outbox. Find the directory with the files of this run, and mount it again"
            )
        for name, identity in self._finished.items():
            with explained(self.place_of(name)):
                if _identified(self.place_of(name)) != identity:
                    raise ArchiveRefused(
                        f"{name} was changed, or removed from {self.path}, during the run: it held rows that have left "
                        "the outbox, or were about to. No further row has left it"
                    )

    def _note(self, name: str) -> None:
        self._finished[name] = _identified(self.place_of(name))
        if len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]

    @contextlib.contextmanager
    def unfinished(self, name: str) -> Iterator[BinaryIO]:
        """Give a new file under a temporary name, and flush it to disk. After an error it is removed."""
        part = self.place_of(f"{name}{PART}")
        try:
            with explained(part), open(part, "xb", opener=self._private) as file:
                yield file
                flush_file(file)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def _private(self, path: str, flags: int) -> int:
        """Create a file that its owner alone can read, or also the group of a directory with the set-group-id bit."""
        shared = stat.S_IMODE(self.path.stat().st_mode) & stat.S_ISGID
        return os.open(path, flags, 0o640 if shared else 0o600)

    def give_final_name(self, name: str, middle: Callable[[], object] = lambda: None) -> None:
        """Give a flushed file its final name, durably. Raises `ArchiverBusy` if another archiver has removed it.

        `middle` is called after the rename, before it is durable: a power failure there may undo it.
        """
        with explained(self.path / name):
            try:
                self.place_of(f"{name}{PART}").rename(self.place_of(name))
            except FileNotFoundError as error:
                raise ArchiverBusy(f"another archiver has removed {name}{PART}, to write its batch again") from error
            middle()
            flush_path(self.path)
            self._note(name)

    def flush(self, name: str) -> None:
        """Make a file durable that was found under its final name. Raises `ArchiveTrouble` if that fails."""
        with explained(self.path / name):
            flush_path(self.place_of(name))
            flush_path(self.path)
            self._note(name)


def open_directory(path: Path, recorded: UUID | None, opening: Opening) -> ArchiveDirectory:
    """Return the directory for new files. `recorded` is the id of the last directory that was used at this path.

    Raises `ArchiveRefused` if it is another one. If the disk is not mounted, files would go to the wrong one.
    """
    found = id_of(path)
    if recorded is not None and found != recorded and opening is not Opening.ANEW:
        raise ArchiveRefused(
            f"{path} is not the directory that rows were archived to before: its id was {recorded}, and is now "
            f"{found or 'missing'}. Mount the right one; if it is lost, or another is meant, run 'thresher archive "
            "--new-directory' once"
        )
    if opening is Opening.EXISTING and not path.is_dir():
        raise ArchiveRefused(
            f"{path} cannot be used for the archive: it is not a directory, and a relay creates none. Mount it; for "
            f"the first time, run 'mkdir' or 'thresher archive --to {path}'"
        )
    return ArchiveDirectory(path)


def id_of(path: Path) -> UUID | None:
    """Return the id of an archive directory; None if it has none."""
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
        raise ArchiveTrouble(f"{why}; none of its rows has left the outbox, run it again once that is fixed") from error


def _identified(path: Path) -> tuple[int, ...]:
    """Return what changes if a file is replaced or written to; nothing if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _identity(path: Path) -> UUID:
    if (known := id_of(path)) is not None:
        # Check now, before a batch is begun.
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "this user cannot write to it")
        return known
    flush_parent(path)
    made = uuid.uuid4()
    draft = path / f"{_MARK}-{made.hex}"
    try:
        with draft.open("x") as file:
            file.write(f"{made}\n")
            flush_file(file)
        # Unlike a rename, a hard link does not replace a mark that another archiver has just made.
        with contextlib.suppress(FileExistsError):
            (path / _MARK).hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    flush_path(path)
    found = id_of(path)
    if found is None:
        raise OSError(errno.EIO, f"its file {_MARK} cannot be read, or is damaged")
    return found
