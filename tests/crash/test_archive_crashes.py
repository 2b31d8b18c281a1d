"""Archivers that are killed or stopped at every point: each row is in the outbox or in the archive, exactly once."""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.archive.outbox_place import DUE, WAITING, YOUNG, OutboxPlace
from tests.faults.program import Program
from tests.processes import eventually, is_stopped
from thresher.archive.run import ArchivePoint

ALL = Counter(range(1, DUE + YOUNG + WAITING + 1))
# An archive in a table has only these two points: right before and right after its commit.
OF_TABLE = (ArchivePoint.REMOVING, ArchivePoint.REMOVED)
# Points at which the batch's file is complete: the next run does not write it again.
COMPLETE = frozenset({ArchivePoint.RENAMED, ArchivePoint.NAMED, ArchivePoint.REMOVING})


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    made = OutboxPlace(dsn, tmp_path / "archive")
    made.fill()
    return made


def started(place: OutboxPlace, target: str, point: ArchivePoint, kind: str) -> "subprocess.Popen[bytes]":
    """Start an archiver that sends itself a signal in its second batch."""
    to = "table" if target == "table" else str(place.directory)
    settings = {"dsn": place.dsn, "to": to, "point": point, "signal": kind, "after": 2}
    return Program(module="tests.archive.program", settings=settings).start(place.directory.with_name("log"))


@pytest.mark.parametrize(
    ("target", "point"),
    [*(("files", point) for point in ArchivePoint), *(("table", point) for point in OF_TABLE)],
)
def test_an_archiver_that_is_killed_anywhere_loses_and_repeats_nothing(
    place: OutboxPlace, target: str, point: ArchivePoint
) -> None:
    assert started(place, target, point, "SIGKILL").wait(60) == -signal.SIGKILL
    left = {path.name for path in place.files}
    # The session of the killed archiver, and its lock, may last for a moment.
    eventually(lambda: not archivers(place), 30)
    done = place.archiver(target).run()
    assert place.everything(target) == ALL
    assert len(place.archived_ids(target)) == DUE
    assert place.archiver(target).run().rows == 0
    if target == "files":
        finished = point is ArchivePoint.REMOVED
        assert done.rows == DUE - (20 if finished else 10)
        assert len(place.files) == 3
        assert place.unfinished() == 0
        assert left <= {path.name for path in place.files}, "a complete file stays as it is"
        assert len(left) == 2 if point in COMPLETE or finished else len(left) == 1
        # The directory holds only files under their final names, and its own marker file.
        assert sorted(path.suffix for path in place.directory.iterdir()) == ["", *[".parquet"] * 3]


@pytest.mark.parametrize("point", ArchivePoint)
def test_an_archiver_that_was_stopped_and_superseded_changes_nothing(place: OutboxPlace, point: ArchivePoint) -> None:
    stopped = started(place, "files", point, "SIGSTOP")
    try:
        eventually(lambda: is_stopped(stopped.pid), 60)
        # Ending its connections frees its lock.
        place.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'thresher/archive%'"
        )
        eventually(lambda: not archivers(place), 30)
        place.archiver("files").run()
        before = (place.ids(), Counter(place.archived_ids("files")))
        assert place.everything("files") == ALL
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.wait(60) == 1
    assert place.ids() == before[0]
    # The stopped archiver may still complete a file. The next run removes that file.
    place.archiver("files").run()
    assert Counter(place.archived_ids("files")) == before[1]
    assert place.everything("files") == ALL


def test_a_complete_file_that_is_damaged_is_written_again(place: OutboxPlace) -> None:
    assert started(place, "files", ArchivePoint.NAMED, "SIGKILL").wait(60) == -signal.SIGKILL
    eventually(lambda: not archivers(place), 30)
    (last,) = [
        path for path in place.files if sum(path.stat().st_mtime_ns > other.stat().st_mtime_ns for other in place.files)
    ]
    content = bytearray(last.read_bytes())
    content[len(content) // 3] ^= 0xFF
    last.write_bytes(content)
    place.archiver("files").run()
    assert not last.exists()
    assert place.everything("files") == ALL


def archivers(place: OutboxPlace) -> int:
    with psycopg.connect(place.dsn) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'thresher/archive%'"
        ).fetchone()
    return 0 if found is None else int(found[0])
