"""Moves stamped rows to the archive, batch by batch. It first finishes the batches that a crash has left."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import psycopg

from thresher.archive.archive_table import ArchiveTable
from thresher.archive.directory import ArchiveDirectory, open_directory
from thresher.archive.due_search import Found, NothingDue, Search, looked_at
from thresher.archive.manifests import Manifests
from thresher.archive.run import Archived, ArchiveJob, ArchivePoint
from thresher.archive.stamped_rows import DueRows, StampedRows
from thresher.archive.superseded import remove_superseded
from thresher.archive.target import Opening, ToDirectory
from thresher.db.names import TableName
from thresher.db.postgres.sessions import connect, resolved

# Moves a batch of rows after one id and up to another; returns the id after which to continue.
_MoveNext = Callable[[int | None, int], int]
# With these, the server notices a dead archiver's machine after two minutes instead of two hours, and frees its lock.
_KEEPALIVES = "-c tcp_keepalives_idle=60 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=6"


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
        """`rest` is called between batches, and between searches, with the seconds that the last one took. `told` is
        called with the totals after each batch."""
        self._job, self._application = job, application
        self._stop, self._rest, self._told, self._reach = stop, rest, told, reach
        self._done = Archived()

    def count(self) -> int:
        """Return how many rows would be moved. Changes nothing."""
        with closing(self._connect()) as connection:
            return StampedRows(connection, self._outbox()).count_due(self._job.older_than_seconds)

    def run(self) -> Archived:
        """Move all rows that are due, or until `stop`. Raises `ArchiverBusy` if another archiver runs."""
        with ExitStack() as closing_all:
            connection = closing_all.enter_context(closing(self._connect()))
            rows = StampedRows(connection, self._outbox())
            closing_all.enter_context(rows.only_archiver())
            move_next = self._prepare(rows, closing_all)
            last: int | None = None
            while (upto := self._look(rows, last)) is not None:
                began = time.monotonic()
                last = move_next(last, upto)
                self._told(self._done)
                self._rest(time.monotonic() - began)
        return self._done

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._job.dsn, self._application, _KEEPALIVES)

    def _outbox(self) -> TableName:
        (found,) = resolved(self._job.dsn, self._application, self._job.outbox)
        return found

    def _look(self, rows: StampedRows, after: int | None) -> int | None:
        """Return the id up to which there are rows for a batch; None if no row is due, or on `stop`."""
        search, last = Search(wanted=self._job.batch_rows), after
        while not self._stop():
            began = time.monotonic()
            window = rows.look(last, self._job.older_than_seconds)
            last = last if window.last is None else window.last
            match looked_at(search, window):
                case Found():
                    return last
                case NothingDue():
                    return None
                case Search() as search:
                    self._rest(time.monotonic() - began)
        return None

    def _prepare(self, rows: StampedRows, closing_all: ExitStack) -> _MoveNext:
        """Prepare the archive, finish batches that were left, and return the function that moves a batch."""
        target, manifests = self._job.target, Manifests(rows)
        if not isinstance(target, ToDirectory):
            table = ArchiveTable(rows)
            if manifests.exist():
                remove_superseded(manifests, None)
                if manifests.unfinished():
                    self._finish_left(rows, manifests, None, closing_all)
            return lambda after, last: self._move(table, after, last)
        manifests.create()
        directory = self._open(manifests, target)
        remove_superseded(manifests, directory)
        file_next = self._finish_left(rows, manifests, directory, closing_all)
        return lambda after, last: file_next(directory, after, last)

    def _open(self, manifests: Manifests, target: ToDirectory) -> ArchiveDirectory:
        recorded = manifests.directory_id(target.path)
        directory = open_directory(target.path, recorded, self._job.opening)
        if self._job.opening is Opening.ANEW and directory.id != recorded:
            manifests.record(directory)
        return directory

    def _finish_left(
        self, rows: StampedRows, manifests: Manifests, directory: ArchiveDirectory | None, closing_all: ExitStack
    ) -> Callable[[ArchiveDirectory, int | None, int], int]:
        # Imported only here: an archive in a table needs neither Arrow nor ADBC.
        from thresher.archive.file_archive import FileArchive  # noqa: PLC0415
        from thresher.archive.row_reader import RowReader  # noqa: PLC0415

        reader = closing_all.enter_context(
            closing(RowReader(self._job.dsn, f"{self._application}/r"[:63], _KEEPALIVES))
        )
        files = FileArchive(
            self._job, manifests, list(rows.columns), directory, reader=reader, done=self._done, reach=self._reach
        )
        files.finish_left(self._stop)
        self._told(self._done)
        return files.file_next

    def _move(self, table: ArchiveTable, after: int | None, upto: int) -> int:
        due = DueRows(after=after, last=upto, seconds=self._job.older_than_seconds, rows=self._job.batch_rows)
        rows, last = table.move(due, lambda: self._reach(ArchivePoint.REMOVING))
        self._reach(ArchivePoint.REMOVED)
        self._done.rows += rows
        self._done.batches += rows > 0
        return last if last is not None and rows == due.rows else upto
