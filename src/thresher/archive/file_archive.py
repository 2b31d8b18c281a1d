"""The archive as files: completes a batch from its manifest, whatever earlier attempts at it have left.

1. Commit the manifest of the batch: its rows by id, create time and version.
2. Read the rows and write them to `<name>.part`. Flush it to disk, rename it, and flush the directory.
3. In one transaction, lock the manifest, remove exactly those of its rows that are in the file, and finish it. Just
   before the commit, find the file in its directory again.

A crash after 1 leaves a manifest: the next archiver writes the file again, under another name. A crash after the rename
leaves a complete file: the next archiver reads it back, flushes it and its directory, and removes its rows. After 3
nothing is left to do. An archiver that was suspended, and resumes after another has taken over its batch, finds the
manifest finished, or with another attempt. It removes nothing, and the next run removes its file.
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
    """Completes the batches of one outbox. `given` is the directory of this run, if it has one. For one thread."""

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
        """The totals are added to `done`."""
        self._job, self._manifests, self._columns, self._given = job, manifests, columns, given
        self._reader, self._done, self._reach = reader, done, reach

    def file_next(self, directory: ArchiveDirectory, after: int | None, last: int) -> int:
        """Move a batch of rows after one id and up to another to a file; return the id after which to continue."""
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
            logger.info("finishing batch %s of the archive, which an earlier run has left", left)
            self._complete(place, batch, fresh=False)

    def _complete(self, directory: ArchiveDirectory, batch: Batch, *, fresh: bool) -> None:
        """Complete a batch. If it is not `fresh`, earlier attempts may have left files, and may still be running."""
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
                    outcome = self._manifests.remove(batch, absent, lambda: self._before_commit(directory))
                    if isinstance(outcome, Changed):
                        found = None
                        continue
                    self._reach(ArchivePoint.REMOVED)
                    self._note(directory, batch, outcome, absent)
                    return

    def _before_commit(self, directory: ArchiveDirectory) -> None:
        """Check, in the transaction that has removed the rows, that their file is where it belongs."""
        directory.require_kept()
        self._reach(ArchivePoint.REMOVING)

    def _found(self, directory: ArchiveDirectory, batch: Batch) -> FileContent | None:
        """Return the content of a batch's file, and make it durable: its writer may have died before the flush."""
        found = read_content(directory.place_of(batch.files.name))
        if found is not None:
            directory.flush(batch.files.name)
        return found

    def _write(self, directory: ArchiveDirectory, batch: Batch) -> FileContent:
        name = batch.files.name
        with directory.unfinished(name) as file, closing(self._reader.read(self._manifests.rows_query(batch))) as rows:
            written = write_rows(file, batch, self._columns, rows, lambda: self._reach(ArchivePoint.WRITING))
        self._reach(ArchivePoint.WRITTEN)
        directory.give_final_name(name, lambda: self._reach(ArchivePoint.RENAMED))
        self._reach(ArchivePoint.NAMED)
        return written

    def _renewed(self, directory: ArchiveDirectory, batch: Batch) -> Batch:
        """Begin another attempt, and remove the files of earlier ones."""
        renewed = self._manifests.renew(batch)
        directory.remove(renewed.files.superseded)
        if missing := len(batch.rows) - len(renewed.rows):
            self._done.changed += missing
            logger.warning(
                "%d rows of %s were changed or removed while they were archived: the changed ones stay in the outbox "
                "until a later run",
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
                "another session removed %d rows while they were archived: %d of them are in %s, %d are not",
                outcome.gone,
                outcome.gone - len(absent),
                batch.files.name,
                len(absent),
            )

    def _elsewhere(self, left: Batch) -> ArchiveRefused:
        batch, directory = left.files.batch, left.files.directory
        return ArchiveRefused(
            f"the batch {batch} was begun in {directory}, which is missing on this machine, or was replaced: run the "
            "archive where that directory is. If it is lost with its files, delete the batch from "
            f"{self._manifests.table}"
        )
