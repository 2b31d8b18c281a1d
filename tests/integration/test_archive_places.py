"""The archive's places: files are durable before rows are removed, and a wrong directory or table is refused."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.archive.outbox_place import DUE, WAITING, YOUNG, OutboxPlace
from tests.processes import PYTHON_PATH, eventually
from thresher.archive import due_search
from thresher.archive.archiver import Archiver
from thresher.archive.directory import id_of
from thresher.archive.problem import ArchiveRefused, ArchiveTrouble
from thresher.archive.run import ArchivePoint
from thresher.archive.target import Opening, ToDirectory
from thresher.db.postgres.sessions import connect

ALL = Counter(range(1, DUE + YOUNG + WAITING + 1))


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    return OutboxPlace(dsn, tmp_path / "archive")


@pytest.fixture
def events(place: OutboxPlace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of flushes to disk, by kind, in order. A test may add archive points to it."""
    found: list[str] = []
    kinds = {str(place.directory): "directory", str(place.directory.parent): "parent"}
    flush = os.fsync

    def record(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        found.append(kinds.get(str(path), path.suffix or "mark"))
        flush(handle)

    monkeypatch.setattr(os, "fsync", record)
    return found


def cut_off(place: OutboxPlace, point: ArchivePoint) -> None:
    """Run an archiver that ends at a point, as if it had been killed."""

    def end(reached: ArchivePoint) -> None:
        if reached is point:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.archiver("files", reach=end).run()


def tried_twice(place: OutboxPlace) -> Path:
    """Archive a batch whose file was written twice. Return the path of the first file."""
    changed: list[ArchivePoint] = []

    def change(point: ArchivePoint) -> None:
        if point is ArchivePoint.NAMED and not changed:
            changed.append(point)
            place.sql("UPDATE outbox SET dispatched_time = NULL WHERE id = 2")

    place.archiver("files", reach=change).run()
    (path,) = place.files
    assert path.name.endswith("-2.parquet")
    return path.with_name(path.name.replace("-2.parquet", "-1.parquet"))


def test_a_file_is_durable_before_its_rows_are_removed(place: OutboxPlace, events: list[str]) -> None:
    place.fill(due=5)
    place.archiver("files", reach=events.append).run()
    assert events == [
        "parent", "mark", "directory", "begun", "writing", ".part", "written", "renamed", "directory", "named",
        "removing", "removed",
    ]  # fmt: skip


@pytest.mark.parametrize("point", [ArchivePoint.RENAMED, ArchivePoint.NAMED, ArchivePoint.REMOVING])
def test_a_file_left_by_a_crash_is_flushed_again(place: OutboxPlace, events: list[str], point: ArchivePoint) -> None:
    place.fill(due=5)
    cut_off(place, point)
    events.clear()
    place.archiver("files", reach=events.append).run()
    assert events == [".parquet", "directory", "removing", "removed"]
    assert len(place.ids()) == YOUNG + WAITING


def test_a_flush_that_fails_keeps_the_rows(place: OutboxPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fill(due=5)
    cut_off(place, ArchivePoint.RENAMED)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveTrouble, match="Input/output error"):
        place.archiver("files").run()
    assert len(place.ids()) == 5 + YOUNG + WAITING


@pytest.mark.parametrize("mount_point_stays", [True, False])
def test_rows_stay_while_the_archive_directory_is_not_mounted(place: OutboxPlace, mount_point_stays: bool) -> None:
    place.fill()
    assert place.archiver("files").run().rows == DUE
    away = place.directory.rename(place.directory.with_name("away"))
    if mount_point_stays:
        place.directory.mkdir()
    place.sql("UPDATE outbox SET dispatched_time = now() - interval '2 hours' WHERE dispatched_time IS NOT NULL")
    for opening in (Opening.MADE, Opening.EXISTING):
        with pytest.raises(ArchiveRefused, match=r"not the directory.*Mount the right one.*--new-directory"):
            Archiver(replace(place.job("files"), opening=opening)).run()
    assert id_of(place.directory) is None
    assert place.directory.exists() == mount_point_stays
    assert len(place.ids()) == YOUNG + WAITING
    if mount_point_stays:
        place.directory.rmdir()
    away.rename(place.directory)
    assert place.archiver("files").run().rows == YOUNG


def test_a_new_directory_takes_the_place_of_a_lost_one(place: OutboxPlace) -> None:
    place.fill()
    place.archiver("files").run()
    place.directory.rename(place.directory.with_name("lost"))
    # No row is due, and the new directory is recorded nevertheless.
    assert Archiver(replace(place.job("files"), opening=Opening.ANEW)).run().rows == 0
    place.sql("UPDATE outbox SET dispatched_time = now() - interval '2 hours' WHERE dispatched_time IS NOT NULL")
    assert place.archiver("files").run().rows == YOUNG
    assert len(place.archived_ids("files")) == YOUNG


def test_another_outbox_refuses_a_lost_directory_too(place: OutboxPlace, dsn: str) -> None:
    place.fill()
    place.archiver("files").run()
    place.directory.rename(place.directory.with_name("away"))
    other = OutboxPlace(dsn, place.directory, table="other")
    with pytest.raises(ArchiveRefused, match="not the directory"):
        other.archiver("files").run()


def test_a_read_only_old_directory_does_not_stop_archiving(
    place: OutboxPlace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.fill(due=5, young=0, waiting=0)
    # A directory cannot be unlinked, as a file in a read-only directory cannot.
    tried_twice(place).mkdir()
    place.sql("UPDATE outbox SET dispatched_time = now() - interval '2 hours'")
    assert place.archiver(ToDirectory(tmp_path / "new")).run().rows == 1
    assert "stay in" in caplog.text


def test_an_unfinished_batch_in_an_unusable_directory_is_reported(place: OutboxPlace) -> None:
    place.fill(due=5)
    cut_off(place, ArchivePoint.BEGUN)
    cut_off(place, ArchivePoint.NAMED)
    (left,) = place.directory.glob("*-2.parquet")
    left.with_name(left.name.replace("-2.parquet", "-1.parquet")).mkdir()
    with pytest.raises((ArchiveRefused, ArchiveTrouble), match="cannot be used for the archive"):
        place.archiver("table").run()
    assert len(place.ids()) == 5 + YOUNG + WAITING


def test_a_table_needs_no_arrow_once_files_are_finished(place: OutboxPlace) -> None:
    place.fill(due=5, young=0, waiting=0)
    tried_twice(place)
    place.sql("UPDATE outbox SET dispatched_time = now() - interval '2 hours'")
    program = (
        "import sys; sys.modules['pyarrow'] = sys.modules['adbc_driver_manager'] = None;"
        "from thresher.cli.app import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "archive", "--older-than", "3600", "--to", "table"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "THRESHER_DS": place.dsn},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert place.ids() == []


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TRIGGER t BEFORE INSERT ON outbox_archive FOR EACH ROW WHEN (new.id % 2 = 0) EXECUTE PROCEDURE skip()",
        "CREATE RULE r AS ON INSERT TO outbox_archive WHERE new.id % 2 = 0 DO INSTEAD NOTHING",
        "ALTER TABLE outbox_archive SET UNLOGGED",
    ],
)
def test_a_table_that_loses_rows_is_refused(place: OutboxPlace, change: str) -> None:
    place.archiver("table").run()
    place.sql("CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    place.sql(change)
    place.fill()
    with pytest.raises(ArchiveRefused, match=r"has taken . of 10 rows|has rules|is UNLOGGED"):
        place.archiver("table").run()
    assert place.everything("table") == ALL
    assert len(place.ids()) == sum(ALL.values())


def test_a_partitioned_table_is_checked_with_its_partitions(place: OutboxPlace) -> None:
    place.archiver("table").run()
    place.sql("ALTER TABLE outbox_archive RENAME TO model")
    place.sql("CREATE TABLE outbox_archive (LIKE model INCLUDING DEFAULTS) PARTITION BY RANGE (id)")
    place.sql("CREATE TABLE low PARTITION OF outbox_archive FOR VALUES FROM (0) TO (10)")
    place.sql("CREATE UNLOGGED TABLE high PARTITION OF outbox_archive FOR VALUES FROM (10) TO (1000)")
    place.fill()
    with pytest.raises(ArchiveRefused, match="high is UNLOGGED"):
        place.archiver("table").run()
    place.sql("ALTER TABLE high SET LOGGED")
    assert place.archiver("table").run().rows == DUE


def stamp(place: OutboxPlace, rows: int, ago: str) -> None:
    place.sql(
        "INSERT INTO outbox (kafka_topic, dispatched_time) "
        f"SELECT 't', now() - interval '{ago}' FROM generate_series(1, {rows})"
    )


def read_rows(place: OutboxPlace) -> int:
    """Return how many rows of the outbox were read, by index or by sequential scan."""
    (found,) = place.sql("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'outbox'")
    return int(found[0])


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_search, "WINDOW_ROWS", 10)
    monkeypatch.setattr(due_search, "YOUNG_WINDOWS", 3)


@pytest.mark.usefixtures("small_windows")
def test_a_run_reads_few_rows_that_are_too_young(place: OutboxPlace) -> None:
    stamp(place, 25, "2 hours")
    stamp(place, 2000, "1 minute")
    place.sql("VACUUM ANALYZE outbox")
    before = read_rows(place)
    assert place.archiver("table").run().rows == 25
    # A session reports its statistics when it ends.
    eventually(lambda: read_rows(place) > before, 30)
    assert read_rows(place) - before < 500


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("target", ["table", "files"])
def test_old_rows_behind_pending_and_young_rows_are_archived(place: OutboxPlace, target: str) -> None:
    place.sql("INSERT INTO outbox (kafka_topic) SELECT 't' FROM generate_series(1, 100)")
    stamp(place, 25, "1 minute")
    stamp(place, 5, "2 hours")
    place.sql("INSERT INTO outbox (id, kafka_topic) VALUES (100000, 't')")
    stamp(place, 25, "2 hours")
    done = place.archiver(target).run()
    assert (done.rows, done.batches) == (30, 3)


@pytest.mark.usefixtures("small_windows")
def test_a_search_for_rows_stops_on_request(place: OutboxPlace) -> None:
    place.sql("INSERT INTO outbox (kafka_topic) SELECT 't' FROM generate_series(1, 100)")
    looks: list[float] = []
    place.archiver("table", stop=lambda: len(looks) == 2, rest=looks.append).run()
    assert len(looks) == 2


def test_an_archivers_session_has_tcp_keepalives(place: OutboxPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fill()
    made: list[psycopg.Connection[Any]] = []
    dsn = psycopg.conninfo.make_conninfo(place.dsn, host="127.0.0.1")

    def keep(_: str, *more: str) -> psycopg.Connection[Any]:
        made.append(connect(dsn, *more))
        return made[-1]

    shown: list[Any] = []

    def ask(point: ArchivePoint) -> None:
        if point is ArchivePoint.REMOVED:
            shown.append(made[0].execute("SHOW tcp_keepalives_idle").fetchone())

    monkeypatch.setattr("thresher.archive.archiver.connect", keep)
    place.archiver("table", reach=ask).run()
    assert set(shown) == {("60",)}


@pytest.mark.parametrize(("directory", "mode"), [(None, 0o600), (0o777, 0o600), (0o2750, 0o640)])
def test_files_are_private_unless_the_directory_is_a_groups(
    place: OutboxPlace, directory: int | None, mode: int
) -> None:
    if directory is not None:
        place.directory.mkdir()
        place.directory.chmod(directory)
    place.fill()
    before = os.umask(0)
    try:
        assert place.archiver("files").run().rows == DUE
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in place.directory.glob("*.parquet")} == {mode}
    assert directory is not None or place.directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("swapped", ["the directory", "a finished file"])
@pytest.mark.parametrize("point", [ArchivePoint.NAMED, ArchivePoint.REMOVED])
def test_a_directory_swapped_during_a_run_takes_no_further_rows(
    place: OutboxPlace, swapped: str, point: ArchivePoint
) -> None:
    place.fill()
    away, done = place.directory.with_name("away"), 0

    def swap(reached: ArchivePoint) -> None:
        nonlocal done
        done += reached is point
        if reached is not point or done != 1:
            return
        if swapped == "the directory":
            place.directory.rename(away)
            place.directory.mkdir()
        else:
            away.mkdir()
            (file,) = place.files
            file.rename(away / file.name)

    with pytest.raises(ArchiveRefused, match=r"was replaced during the run|during the run: it held rows"):
        place.archiver("files", reach=swap).run()
    found = Counter(place.ids()) + Counter(place.archived_in(away)) + Counter(place.archived_in(place.directory))
    assert found.keys() == ALL.keys(), "every row is in the outbox or in a file"
    assert len(place.ids()) >= DUE + YOUNG + WAITING - 10, "only the first batch may have left"


@pytest.mark.parametrize("target", ["table", "files"])
def test_a_trigger_that_keeps_rows_ends_the_run(place: OutboxPlace, target: str) -> None:
    place.fill()
    place.sql("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    place.sql("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()")
    with pytest.raises(ArchiveRefused, match=r"could not be removed.*trigger"):
        place.archiver(target).run()
    place.sql("DROP TRIGGER keep ON outbox")
    assert place.archiver(target).run().rows == DUE
    assert place.everything(target) == ALL


def test_a_finished_file_stays_whatever_its_manifest_says(place: OutboxPlace) -> None:
    place.fill(due=5)
    place.archiver("files").run()
    place.sql("UPDATE thresher_archive_batches SET attempt = attempt + 1")
    assert place.archiver("files").run().rows == 0
    assert place.archived_ids("files")


def test_a_manifests_name_leads_to_no_other_directory(place: OutboxPlace) -> None:
    place.fill(due=5)
    cut_off(place, ArchivePoint.BEGUN)
    place.sql("UPDATE thresher_archive_batches SET stem = '../elsewhere/' || stem")
    elsewhere = place.directory.with_name("elsewhere")
    elsewhere.mkdir()
    with pytest.raises(ArchiveRefused, match="is no name of an archive's file"):
        place.archiver("files").run()
    assert not list(elsewhere.iterdir())
    assert len(place.ids()) == 5 + YOUNG + WAITING
