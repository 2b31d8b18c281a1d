"""Moves stamped rows to the archive, batch after batch, and finishes first what a crash has left.

For a table, a batch is one statement. For files:
1. The manifest of the batch is committed: its rows by id, create time and version.
2. The rows are read and written to `<name>.part`, which is flushed to the disk and renamed; the directory is flushed.
3. In one transaction the manifest is locked, exactly its rows that are in the file are removed, and it is finished.

A crash after 1 leaves a manifest: the next archiver writes the file anew, under another name. A crash after the rename
leaves a complete file, which is read back: its rows are removed. After 3 nothing is left to do. An archiver that was
stopped, and wakes up when another has finished its batch, finds the manifest finished, or with another attempt: it
removes nothing, and its file is removed.
"""

import enum
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from uuid import UUID

from thresher.archive.batch import Batch, BatchFiles, FileContent, Forget, Remove, Write, next_step
from thresher.archive.directory import ArchiveDirectory, id_of
from thresher.archive.problem import ArchiveRefused
from thresher.archive.store import ArchiveStore, Changed, Removed
from thresher.archive.target import Target, ToDirectory
from thresher.db.names import TableName
from thresher.db.postgres.sessions import connect

logger = logging.getLogger(__name__)


class ArchivePoint(enum.StrEnum):
    """Where an archiver can be cut off: a crash test is told, and nothing else happens."""

    BEGUN = "begun"
    WRITING = "writing"
    WRITTEN = "written"
    NAMED = "named"
    REMOVING = "removing"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """What is archived, and where to: rows whose dispatched time is older than so many seconds."""

    dsn: str = field(repr=False)
    outbox: TableName
    target: Target
    older_than_seconds: float
    batch_rows: int = 10_000


@dataclass(slots=True, kw_only=True)
class Archived:
    """What was done so far. `gone` were removed by somebody else, `changed` stay in the outbox until the next time."""

    rows: int = 0
    batches: int = 0
    files: list[str] = field(default_factory=list)
    gone: int = 0
    changed: int = 0


class Archiver:
    """One run over an outbox. For one thread."""

    def __init__(
        self,
        job: ArchiveJob,
        *,
        application: str = "thresher/archive",
        stop: Callable[[], bool] = lambda: False,
        rest: Callable[[float], object] = lambda _seconds: None,
        told: Callable[[Archived], object] = lambda _done: None,
        reach: Callable[[ArchivePoint], object] = lambda _point: None,
    ) -> None:
        """`rest` is called between batches with what the last one took, and `told` with what was done."""
        self._job, self._application = job, application
        self._stop, self._rest, self._told, self._reach = stop, rest, told, reach
        self._done = Archived()

    def count(self) -> int:
        """Return how many rows would be moved. Nothing is changed."""
        with closing(connect(self._job.dsn, self._application)) as connection:
            return ArchiveStore(connection, self._job.outbox).count_due(self._job.older_than_seconds)

    def run(self) -> Archived:
        """Move all that is due, or until `stop`. Raises `ArchiverBusy` where another one runs."""
        job = self._job
        with closing(connect(job.dsn, self._application)) as connection:
            store = ArchiveStore(connection, job.outbox)
            store.lock()
            directory = ArchiveDirectory(job.target.path) if isinstance(job.target, ToDirectory) else None
            if directory is None:
                store.require_table()
            else:
                store.require_batches()
            if store.has_batches():
                self._finish_left(store, directory)
            after: int | None = None
            while not self._stop():
                began = time.monotonic()
                last = self._move(store, after) if directory is None else self._file(store, directory, after)
                if last is None:
                    break
                after = last
                self._told(self._done)
                self._rest(time.monotonic() - began)
        return self._done

    def _move(self, store: ArchiveStore, after: int | None) -> int | None:
        """Move a batch to the table; return the last row's id."""
        rows, last = store.move(
            after=after,
            seconds=self._job.older_than_seconds,
            rows=self._job.batch_rows,
            middle=lambda: self._reach(ArchivePoint.REMOVING),
        )
        self._reach(ArchivePoint.REMOVED)
        self._done.rows += rows
        self._done.batches += rows > 0
        return last

    def _file(self, store: ArchiveStore, directory: ArchiveDirectory, after: int | None) -> int | None:
        """Move a batch to a file; return the last row's id."""
        batch = store.begin(directory, after=after, seconds=self._job.older_than_seconds, rows=self._job.batch_rows)
        if batch is None:
            return None
        self._reach(ArchivePoint.BEGUN)
        self._complete(store, directory, batch, fresh=True)
        return max(batch.rows)

    def _finish_left(self, store: ArchiveStore, directory: ArchiveDirectory | None) -> None:
        """Finish the batches that a crash has left, and remove files of attempts that others have superseded."""
        for files in store.superseded():
            if (place := _directory_of(files, directory)) is not None:
                place.remove(files.superseded)
        for left in store.open_batches():
            if self._stop():
                return
            batch = store.manifest(left)
            if batch is None:
                continue
            place = _directory_of(batch.files, directory)
            if place is None:
                raise _elsewhere(left, batch, store)
            logger.info("the batch %s of the archive was left unfinished, and is finished now", left)
            self._complete(store, place, batch, fresh=False)
            self._told(self._done)

    def _complete(self, store: ArchiveStore, directory: ArchiveDirectory, batch: Batch, *, fresh: bool) -> None:
        """Take a batch to its end. Not `fresh`: attempts before may have left anything, and may be going on."""
        found = None if fresh else _read(directory, batch)
        while True:
            match next_step(batch, found):
                case Forget():
                    store.forget(batch)
                    return
                case Write() if fresh:
                    found, fresh = self._write(store, directory, batch), False
                case Write():
                    batch, found, fresh = self._renewed(store, directory, batch), None, True
                case Remove(absent=absent):
                    outcome = store.remove(batch, absent, lambda: self._reach(ArchivePoint.REMOVING))
                    if isinstance(outcome, Changed):
                        found = None
                        continue
                    self._reach(ArchivePoint.REMOVED)
                    self._note(directory, batch, outcome, absent)
                    return

    def _write(self, store: ArchiveStore, directory: ArchiveDirectory, batch: Batch) -> FileContent:
        # Only here: an archive in a table needs neither Arrow nor its driver.
        from thresher.archive.parquet import write_rows  # noqa: PLC0415
        from thresher.archive.row_reader import read_rows  # noqa: PLC0415

        name, application = batch.files.name, f"{self._application}/r"[:63]
        with directory.unfinished(name) as file:
            rows = read_rows(self._job.dsn, application, store.rows_query(batch))
            with closing(rows):
                written = write_rows(file, batch, list(store.columns), rows, lambda: self._reach(ArchivePoint.WRITING))
        self._reach(ArchivePoint.WRITTEN)
        directory.name_it(name)
        self._reach(ArchivePoint.NAMED)
        return written

    def _renewed(self, store: ArchiveStore, directory: ArchiveDirectory, batch: Batch) -> Batch:
        """Begin another attempt, and remove what earlier ones have left."""
        renewed = store.renew(batch)
        directory.remove(renewed.files.superseded)
        if missing := len(batch.rows) - len(renewed.rows):
            self._done.changed += missing
            logger.warning(
                "%d rows of %s were changed or removed while they were archived: those that are still there stay for "
                "the next time",
                missing,
                store.outbox,
            )
        return renewed

    def _note(self, directory: ArchiveDirectory, batch: Batch, outcome: Removed, absent: tuple[int, ...]) -> None:
        self._done.rows += outcome.rows
        self._done.batches += 1
        self._done.files.append(str(directory.path / batch.files.name))
        self._done.gone += outcome.gone
        if outcome.gone:
            logger.warning(
                "%d rows were removed by somebody else while they were archived: %d of them are in %s, %d are not",
                outcome.gone,
                outcome.gone - len(absent),
                batch.files.name,
                len(absent),
            )


def _read(directory: ArchiveDirectory, batch: Batch) -> FileContent | None:
    from thresher.archive.parquet import read_content  # noqa: PLC0415

    return read_content(directory.path / batch.files.name)


def _directory_of(files: BatchFiles, given: ArchiveDirectory | None) -> ArchiveDirectory | None:
    """Return the directory of a batch: the one that was given, wherever it is now, or the one at its old path."""
    if given is not None and given.id == files.directory_id:
        return given
    return ArchiveDirectory(files.directory) if id_of(files.directory) == files.directory_id else None


def _elsewhere(batch: UUID, left: Batch, store: ArchiveStore) -> ArchiveRefused:
    return ArchiveRefused(
        f"the batch {batch} was begun in {left.files.directory}, which is not here, or is another one by now: run "
        f"the archive where that one is. If it is lost, with its files, remove the batch from {store.batches}"
    )
