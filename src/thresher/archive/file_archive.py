"""The archive as files: takes a batch from its manifest to its end, whatever earlier attempts at it have left.

1. The manifest of the batch is committed: its rows by id, create time and version.
2. The rows are read and written to `<name>.part`, which is flushed to the disk and renamed; the directory is flushed.
3. In one transaction the manifest is locked, exactly its rows that are in the file are removed, and it is finished.

A crash after 1 leaves a manifest: the next archiver writes the file anew, under another name. A crash after the rename
leaves a complete file, which is read back and flushed again, with its directory: then its rows are removed. After 3
nothing is left to do. An archiver that was stopped, and wakes up when another has taken its batch over, finds the
manifest finished, or with another attempt: it removes nothing, and its file is removed by the next run.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing

from thresher.archive.batch import Batch, FileContent, Forget, Remove, Write, next_step
from thresher.archive.directory import ArchiveDirectory
from thresher.archive.manifests import Changed, Manifests, Removed
from thresher.archive.parquet import read_content, write_rows
from thresher.archive.problem import ArchiveRefused
from thresher.archive.row_reader import RowReader
from thresher.archive.run import Archived, ArchiveJob, ArchivePoint
from thresher.archive.stamped_rows import DueRows
from thresher.archive.superseded import directory_of

logger = logging.getLogger(__name__)


class FileArchive:
    """Over one outbox's manifests; `given` is the directory of this run, if it has one. For one thread."""

    def __init__(
        self,
        job: ArchiveJob,
        manifests: Manifests,
        columns: Sequence[str],
        given: ArchiveDirectory | None,
        *,
        reader: RowReader,
        done: Archived,
        reach: Callable[[ArchivePoint], object],
    ) -> None:
        """`done` is added to."""
        self._job, self._manifests, self._columns, self._given = job, manifests, columns, given
        self._reader, self._done, self._reach = reader, done, reach

    def file_next(self, directory: ArchiveDirectory, after: int | None, last: int) -> int:
        """Move a batch to a file, of rows behind one id and up to another; return the id behind which to go on."""
        due = DueRows(after=after, last=last, seconds=self._job.older_than_seconds, rows=self._job.batch_rows)
        batch = self._manifests.begin(directory, due)
        if batch is None:
            return last
        self._reach(ArchivePoint.BEGUN)
        self._complete(directory, batch, fresh=True)
        return max(batch.rows) if len(batch.rows) == due.rows else last

    def finish_left(self, stop: Callable[[], bool]) -> None:
        """Finish the batches that a crash has left."""
        for left in self._manifests.unfinished():
            batch = None if stop() else self._manifests.read(left)
            if batch is None:
                continue
            place = directory_of(batch.files, self._given)
            if place is None:
                raise self._elsewhere(batch)
            logger.info("the batch %s of the archive was left unfinished, and is finished now", left)
            self._complete(place, batch, fresh=False)

    def _complete(self, directory: ArchiveDirectory, batch: Batch, *, fresh: bool) -> None:
        """Take a batch to its end. Not `fresh`: attempts before may have left anything, and may be going on."""
        found = None if fresh else self._found(directory, batch)
        while True:
            match next_step(batch, found):
                case Forget():
                    self._manifests.forget(batch)
                    return
                case Write() if fresh:
                    found, fresh = self._write(directory, batch), False
                case Write():
                    batch, found, fresh = self._renewed(directory, batch), None, True
                case Remove(absent=absent):
                    outcome = self._manifests.remove(batch, absent, lambda: self._reach(ArchivePoint.REMOVING))
                    if isinstance(outcome, Changed):
                        found = None
                        continue
                    self._reach(ArchivePoint.REMOVED)
                    self._note(directory, batch, outcome, absent)
                    return

    def _found(self, directory: ArchiveDirectory, batch: Batch) -> FileContent | None:
        """Return what the file of a batch has, durably. Whoever has written it may have died before its name was."""
        found = read_content(directory.path / batch.files.name)
        if found is not None:
            directory.flush(batch.files.name)
        return found

    def _write(self, directory: ArchiveDirectory, batch: Batch) -> FileContent:
        name = batch.files.name
        with directory.unfinished(name) as file, closing(self._reader.read(self._manifests.rows_query(batch))) as rows:
            written = write_rows(file, batch, self._columns, rows, lambda: self._reach(ArchivePoint.WRITING))
        self._reach(ArchivePoint.WRITTEN)
        directory.name_it(name, lambda: self._reach(ArchivePoint.RENAMED))
        self._reach(ArchivePoint.NAMED)
        return written

    def _renewed(self, directory: ArchiveDirectory, batch: Batch) -> Batch:
        """Begin another attempt, and remove what earlier ones have left."""
        renewed = self._manifests.renew(batch)
        directory.remove(renewed.files.superseded)
        if missing := len(batch.rows) - len(renewed.rows):
            self._done.changed += missing
            logger.warning(
                "%d rows of %s were changed or removed while they were archived: those that are still there stay for "
                "the next time",
                missing,
                self._job.outbox,
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

    def _elsewhere(self, left: Batch) -> ArchiveRefused:
        batch, directory = left.files.batch, left.files.directory
        return ArchiveRefused(
            f"the batch {batch} was begun in {directory}, which is not here, or is another one by now: run the archive "
            f"where that one is. If it is lost, with its files, remove the batch from {self._manifests.table}"
        )
