"""Stamped rows move to the archive, whole and once, and no others do."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from tests.archive.outbox_place import DUE, WAITING, YOUNG, OutboxPlace
from tests.processes import PYTHON_PATH
from thresher.archive.problem import ArchiverBusy, ArchiveRefused
from thresher.archive.row_reader import RowReader
from thresher.archive.run import ArchivePoint
from thresher.archive.stamped_rows import StampedRows
from thresher.archive.target import ToDirectory
from thresher.db.problem import DatabaseRefused
from thresher.harvest.configuration import load

TARGETS = ("table", "files")
PAGE = (Path(__file__).parents[2] / "docs" / "archive.md").read_text()
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
COLUMNS = (
    "id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, "
    "kafka_timestamp, dispatched_time, leader_id::text, bucket"
)


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> OutboxPlace:
    return OutboxPlace(dsn, tmp_path / "archive")


class At:
    """Calls `do` the first time that an archiver reaches a point."""

    def __init__(self, point: ArchivePoint, do: Any) -> None:
        self._point, self._do, self.done = point, do, False

    def __call__(self, point: ArchivePoint) -> None:
        if point is self._point and not self.done:
            self.done = True
            self._do()


@pytest.mark.parametrize("target", TARGETS)
def test_rows_stamped_long_ago_move_and_no_others(place: OutboxPlace, target: str) -> None:
    place.fill()
    due = [row[0] for row in place.sql("SELECT id FROM outbox WHERE dispatched_time < now() - interval '1 hour'")]
    assert place.archiver(target).count() == DUE
    done = place.archiver(target).run()
    assert (done.rows, done.batches, done.gone, done.changed) == (DUE, 3, 0, 0)
    assert place.archived_ids(target) == sorted(due)
    assert len(place.ids()) == YOUNG + WAITING
    assert place.everything(target) == Counter(range(1, DUE + YOUNG + WAITING + 1))
    assert len(done.files) == (0 if target == "table" else 3)
    assert done.files == [] or [Path(each) for each in sorted(done.files)] == place.files
    # A second run finds nothing to do.
    assert place.archiver(target).run().rows == 0


def odd_rows(place: OutboxPlace) -> list[tuple[Any, ...]]:
    """Write rows of all kinds of content, stamped by hand; return them."""
    rows: list[tuple[Any, ...]] = [
        (AT, "t", None, None, [], [], None, None, AT, None),
        (AT, "t", b"", b"", ["a", "a", ""], [b"", None, b"\0\xff"], 7, AT, AT, "0b9c9b5e-0000-4000-8000-000000000001"),
        (AT, "t", b"\xff\0", bytes(range(256)) * 40, ["ü\U0001f600"], [b"v"], 0, AT, AT, None),
    ]
    for row in rows:
        place.sql(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
            "kafka_header_values, kafka_partition, kafka_timestamp, dispatched_time, leader_id) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", *row,
        )  # fmt: skip
    return place.sql(f"SELECT {COLUMNS} FROM outbox ORDER BY id")


def test_a_table_keeps_all_content(place: OutboxPlace) -> None:
    rows = odd_rows(place)
    place.archiver("table").run()
    assert place.sql(f"SELECT {COLUMNS} FROM outbox_archive ORDER BY id") == rows
    assert place.sql("SELECT count(*) FROM outbox_archive WHERE archived_time <= clock_timestamp()") == [(3,)]


def test_a_file_keeps_all_content(place: OutboxPlace) -> None:
    rows = odd_rows(place)
    place.archiver("files").run()
    (path,) = place.files
    table = pq.read_table(path)
    assert [tuple(row.values()) for row in table.to_pylist()] == rows
    assert table.column("id").to_pylist() == sorted(table.column("id").to_pylist())


def test_a_value_parquet_cannot_hold_becomes_the_nearest_one(place: OutboxPlace) -> None:
    place.sql(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_header_keys, kafka_header_values, dispatched_time) VALUES "
        "('infinity', 't', '{{a,b},{c,d}}', '[3:4]={x,y}', '-infinity')"
    )
    place.archiver("files").run()
    (row,) = pq.read_table(place.files[0]).to_pylist()
    assert (row["create_time"].year, row["dispatched_time"].year) == (9999, 1)
    assert (row["kafka_header_keys"], row["kafka_header_values"]) == (["a", "b", "c", "d"], [b"x", b"y"])
    assert place.ids() == []


@pytest.mark.parametrize("target", TARGETS)
def test_odd_names_and_extra_columns_are_archived_unchanged(dsn: str, tmp_path: Path, target: str) -> None:
    place = OutboxPlace(dsn, tmp_path / "archive", table='Out "box" 100%s/{table}')
    place.sql(f'ALTER TABLE {place.table} ADD COLUMN "tenant %s" int DEFAULT 5')
    place.fill()
    if target == "table":
        # A table that is made now has every column; one that is older has to be changed.
        assert place.archiver(target, rows=10, seconds=1e9).run().rows == 0
        place.sql(f'ALTER TABLE {place.table.companion("_archive")} DROP COLUMN "tenant %s"')
        with pytest.raises(ArchiveRefused, match="ADD COLUMN") as refused:
            place.archiver(target).run()
        place.sql(str(refused.value).partition(": ")[2])
    assert place.archiver(target).run().rows == DUE
    assert place.everything(target) == Counter(range(1, DUE + YOUNG + WAITING + 1))
    if target == "table":
        assert place.sql(f'SELECT DISTINCT "tenant %s" FROM {place.table.companion("_archive")}') == [(5,)]
    else:
        assert pq.read_table(place.files[0]).column("tenant %s").to_pylist() == ["5"] * 10


@pytest.mark.parametrize("target", TARGETS)
def test_only_one_of_two_archivers_works(place: OutboxPlace, target: str) -> None:
    place.fill()
    met: list[str] = []

    def second() -> None:
        with pytest.raises(ArchiverBusy) as busy:
            place.archiver(target).run()
        met.append(str(busy.value))

    place.archiver(target, reach=At(ArchivePoint.REMOVING, second)).run()
    assert "another archiver works on" in met[0]
    assert place.everything(target) == Counter(range(1, DUE + YOUNG + WAITING + 1))


@pytest.mark.parametrize("change", ["kafka_value = 'new'", "dispatched_time = NULL"])
@pytest.mark.parametrize("point", [ArchivePoint.BEGUN, ArchivePoint.WRITTEN, ArchivePoint.NAMED])
def test_a_row_changed_after_the_manifest_stays(place: OutboxPlace, point: ArchivePoint, change: str) -> None:
    place.fill(due=5)
    (changed,) = place.sql("SELECT min(id) FROM outbox WHERE dispatched_time < now() - interval '1 hour'")[0]
    done = place.archiver(
        "files", reach=At(point, lambda: place.sql(f"UPDATE outbox SET {change} WHERE id = {changed}"))
    )
    found = done.run()
    assert (found.rows, found.changed) == (4, 1)
    assert changed in place.ids()
    assert place.everything("files") == Counter(range(1, 5 + YOUNG + WAITING + 1))
    assert len(place.files) == 1, "the file of the first attempt is gone"
    assert place.archiver("files").run().rows == (1 if "value" in change else 0)
    assert place.everything("files") == Counter(range(1, 5 + YOUNG + WAITING + 1))


def test_a_row_locked_by_an_update_is_awaited_and_stays(place: OutboxPlace) -> None:
    place.fill(due=5, young=0, waiting=0)
    with psycopg.connect(place.dsn) as other:

        def change() -> None:
            other.execute("UPDATE outbox SET kafka_value = 'new' WHERE id = 3")
            threading.Timer(0.5, other.commit).start()

        done = place.archiver("files", reach=At(ArchivePoint.NAMED, change)).run()
    assert (done.rows, done.changed, place.ids()) == (4, 1, [3])


@pytest.mark.parametrize(("point", "in_file"), [(ArchivePoint.BEGUN, 4), (ArchivePoint.NAMED, 5)])
def test_a_row_that_another_session_deletes_is_reported(
    place: OutboxPlace, point: ArchivePoint, in_file: int, caplog: pytest.LogCaptureFixture
) -> None:
    place.fill(due=5, young=0, waiting=0)
    done = place.archiver("files", reach=At(point, lambda: place.sql("DELETE FROM outbox WHERE id = 2"))).run()
    assert (done.rows, done.gone, len(place.archived_ids("files"))) == (4, 1, in_file)
    assert "another session removed" in caplog.text
    assert place.ids() == []


def test_a_new_row_under_an_archived_id_stays(place: OutboxPlace) -> None:
    place.fill(due=5, young=0, waiting=0)

    def come_back() -> None:
        place.sql("DELETE FROM outbox WHERE id = 2")
        place.sql("INSERT INTO outbox (id, kafka_topic, dispatched_time) VALUES (2, 'other', now() - interval '1 day')")

    place.archiver("files", reach=At(ArchivePoint.NAMED, come_back)).run()
    assert place.archived_ids("files") == [1, 2, 3, 4, 5]
    assert place.sql("SELECT id, kafka_topic FROM outbox") == [(2, "other")]


def test_a_file_without_one_of_its_rows_is_rewritten(place: OutboxPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fill(due=5, young=0, waiting=0)
    read: list[bool] = []

    def short(reader: RowReader, query: str) -> Any:
        for batch in whole(reader, query):
            yield batch if read else batch.slice(1)
            read.append(True)

    whole = RowReader.read
    monkeypatch.setattr(RowReader, "read", short)
    done = place.archiver("files").run()
    assert len(read) == 2, "the file was written twice"
    assert (done.rows, place.ids(), place.archived_ids("files")) == (5, [], [1, 2, 3, 4, 5])


@pytest.mark.parametrize("point", [point for point in ArchivePoint if point is not ArchivePoint.REMOVING])
def test_an_archiver_that_lost_its_lock_removes_no_other_rows(
    place: OutboxPlace, monkeypatch: pytest.MonkeyPatch, point: ArchivePoint
) -> None:
    """Behind a pooler the lock may be lost while the session lives. The manifest alone fences the archiver."""
    place.fill()
    monkeypatch.setattr(StampedRows, "only_archiver", lambda _rows: nullcontext())
    # Outside the transaction that locks the manifest: within it, the second archiver would wait.
    at = At(point, lambda: place.archiver("files").run())
    if point is ArchivePoint.REMOVED:
        assert place.archiver("files", reach=at).run().rows == 10
    else:
        with pytest.raises(ArchiverBusy):
            place.archiver("files", reach=at).run()
    assert at.done
    assert place.archiver("files").run().rows == 0
    assert place.everything("files") == Counter(range(1, DUE + YOUNG + WAITING + 1))
    assert len(place.files) == 3, "the files that the first archiver wrote too late are removed"


def test_locked_rows_are_left_for_the_next_time(place: OutboxPlace) -> None:
    place.fill(due=5, young=0, waiting=0)
    with psycopg.connect(place.dsn) as other:
        other.execute("SELECT FROM outbox WHERE id = 2 FOR UPDATE")
        assert place.archiver("table").run().rows == 4
    assert place.archiver("table").run().rows == 1


def test_a_row_already_in_the_archive_table_is_refused(place: OutboxPlace) -> None:
    place.fill(due=5, young=0, waiting=0)
    place.archiver("table").run()
    place.sql("INSERT INTO outbox (id, create_time, kafka_topic, dispatched_time) "
              "SELECT id, create_time, 'again', now() - interval '1 day' FROM outbox_archive WHERE id = 3")  # fmt: skip
    with pytest.raises(ArchiveRefused, match=r'is in "public"\."outbox_archive" already .*delete one'):
        place.archiver("table").run()
    assert place.ids() == [3]


def test_finished_files_are_listed_with_their_rows(place: OutboxPlace) -> None:
    place.fill(due=15, young=0, waiting=0)
    done = place.archiver("files").run()
    listed = place.sql(
        "SELECT directory || '/' || stem || '-' || replace(batch::text, '-', '') || '-' || attempt || '.parquet', "
        "row_count, first_id, last_id, ids FROM thresher_archive_batches ORDER BY first_id"
    )
    assert listed == [(done.files[0], 10, 1, 10, []), (done.files[1], 5, 11, 15, [])]


def test_an_unfinished_batch_is_finished_in_its_directory_or_refused(place: OutboxPlace, tmp_path: Path) -> None:
    place.fill(due=5, young=0, waiting=0)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.archiver("files", reach=At(ArchivePoint.NAMED, stop)).run()
    away = tmp_path / "away"
    place.directory.rename(away)
    for target in ("table", ToDirectory(tmp_path / "other")):
        with pytest.raises(ArchiveRefused, match=r"was begun in .*run the archive where that directory is"):
            place.archiver(target).run()
    # The batch is finished once its directory is back.
    away.rename(place.directory)
    assert place.archiver("table").run().rows == 5
    assert place.archived_ids("files") == [1, 2, 3, 4, 5]
    assert place.archived_ids("table") == place.ids() == []


def test_tables_and_directories_that_cannot_be_used_are_refused(place: OutboxPlace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "no" / "such", Path("/proc")):
        with pytest.raises(ArchiveRefused, match="cannot be used for the archive"):
            place.archiver(ToDirectory(path)).run()
    place.sql("ALTER TABLE outbox RENAME COLUMN dispatched_time TO sent")
    with pytest.raises(ArchiveRefused, match=r"only an outbox in .* own shape.*column dispatched_time"):
        place.archiver("table").run()
    place.sql("DROP TABLE outbox")
    with pytest.raises(DatabaseRefused, match="there is no table"):
        place.archiver("table").run()


def test_a_full_disk_loses_no_row(place: OutboxPlace) -> None:
    place.fill(value_bytes=4000)
    # A limit on file sizes makes writing fail midway, as on a full disk.
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY));"
        "from thresher.cli.app import main; main()"
    )
    full = subprocess.run(
        [sys.executable, "-c", program, "archive", "--older-than", "3600", "--to", str(place.directory)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "THRESHER_DS": place.dsn},
    )  # fmt: skip
    assert full.returncode == 1, full.stderr
    assert "cannot be used for the archive" in full.stderr
    assert "none of its rows has left the outbox" in full.stderr
    assert len(place.ids()) == DUE + YOUNG + WAITING
    assert [path.name for path in place.directory.iterdir()] == [".thresher-archive"]
    assert place.archiver("files").run().rows == DUE
    assert place.everything("files") == Counter(range(1, DUE + YOUNG + WAITING + 1))


def test_the_pages_examples_work(place: OutboxPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place.fill()
    done = place.archiver("files").run()
    found = dict(re.findall(r"^```(sql|python|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert [row[0] for row in place.sql(found["sql"])] == done.files
    exec(found["python"].replace("/srv/archive/orders", str(place.directory)).replace('"orders"', '"t"'), {})  # noqa: S102
    assert capsys.readouterr().out == f"{DUE}\n"
    (tmp_path / "relay.yaml").write_text(found["yaml"])
    settings = load(tmp_path / "relay.yaml", {}).settings
    assert (settings.archive_after_seconds, settings.archive_to) == (604_800, "/srv/archive/orders")
