"""Moves stamped rows to the archive, batch after batch, and finishes first what a crash has left."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from thresher.archive.archive_table import ArchiveTable
from thresher.archive.directory import ArchiveDirectory
from thresher.archive.manifests import Manifests
from thresher.archive.run import Archived, ArchiveJob, ArchivePoint
from thresher.archive.stamped_rows import StampedRows
from thresher.archive.target import ToDirectory
from thresher.db.postgres.sessions import connect

# Moves the next batch behind an id; returns the last row's id, or None where nothing was due.
_MoveNext = Callable[[int | None], int | None]


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
            return StampedRows(connection, self._job.outbox).count_due(self._job.older_than_seconds)

    def run(self) -> Archived:
        """Move all that is due, or until `stop`. Raises `ArchiverBusy` where another one runs."""
        with ExitStack() as closing_all:
            connection = closing_all.enter_context(closing(connect(self._job.dsn, self._application)))
            rows = StampedRows(connection, self._job.outbox)
            rows.lock()
            move_next = self._prepare(rows, closing_all)
            last: int | None = None
            while not self._stop():
                began = time.monotonic()
                last = move_next(last)
                if last is None:
                    break
                self._told(self._done)
                self._rest(time.monotonic() - began)
        return self._done

    def _prepare(self, rows: StampedRows, closing_all: ExitStack) -> _MoveNext:
        """Make the archive usable, finish what was left, and return what moves a batch."""
        target, manifests = self._job.target, Manifests(rows)
        if not isinstance(target, ToDirectory):
            table = ArchiveTable(rows)
            if manifests.exist():
                self._finish_left(rows, manifests, None, closing_all)
            return lambda after: self._move(table, after)
        directory = ArchiveDirectory(target.path)
        manifests.create()
        file_next = self._finish_left(rows, manifests, directory, closing_all)
        return lambda after: file_next(directory, after)

    def _finish_left(
        self, rows: StampedRows, manifests: Manifests, directory: ArchiveDirectory | None, closing_all: ExitStack
    ) -> Callable[[ArchiveDirectory, int | None], int | None]:
        # Only here: an archive in a table needs neither Arrow nor its driver.
        from thresher.archive.file_archive import FileArchive  # noqa: PLC0415
        from thresher.archive.row_reader import RowReader  # noqa: PLC0415

        reader = closing_all.enter_context(closing(RowReader(self._job.dsn, f"{self._application}/r"[:63])))
        files = FileArchive(
            self._job, manifests, list(rows.columns), directory, reader=reader, done=self._done, reach=self._reach
        )
        files.finish_left(self._stop)
        self._told(self._done)
        return files.file_next

    def _move(self, table: ArchiveTable, after: int | None) -> int | None:
        rows, last = table.move(
            after=after,
            seconds=self._job.older_than_seconds,
            rows=self._job.batch_rows,
            middle=lambda: self._reach(ArchivePoint.REMOVING),
        )
        self._reach(ArchivePoint.REMOVED)
        self._done.rows += rows
        self._done.batches += rows > 0
        return last
