"""The next step of an archiver, by manifest and file; names, places and pauses of an archive."""

import errno
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.archive.background import pause_seconds
from thresher.archive.batch import Batch, BatchFiles, FileContent, Forget, Remove, Write, next_step, stem_of
from thresher.archive.directory import ArchiveDirectory, explained, id_of
from thresher.archive.due_search import YOUNG_WINDOWS, Found, NothingDue, Search, Window, looked_at
from thresher.archive.problem import ArchiverBusy, ArchiveRefused, ArchiveTrouble
from thresher.archive.run import ArchiveJob
from thresher.archive.target import TO_TABLE, ToDirectory, target_of
from thresher.core.errors import InvalidInput
from thresher.db import TableName

BATCH = uuid.UUID("5f3a91c0-0000-4000-8000-000000000001")
FILES = BatchFiles(batch=BATCH, directory=Path("/a"), directory_id=uuid.uuid4(), stem="outbox-1", attempt=3)
rows = st.dictionaries(st.integers(1, 6), st.integers(0, 2), max_size=6)


def content(found: dict[int, int], *, batch: str = str(BATCH), attempt: int = 3) -> FileContent:
    return FileContent(batch=batch, attempt=attempt, rows=found)


@given(named=rows, found=st.none() | rows)
def test_only_rows_of_the_file_and_the_manifest_are_removed(
    named: dict[int, int], found: dict[int, int] | None
) -> None:
    step = next_step(Batch(files=FILES, rows=named), None if found is None else content(found))
    if not named:
        assert step == Forget()
    elif found is None or not found.items() <= named.items():
        assert step == Write()
    else:
        assert isinstance(step, Remove)
        assert named.keys() - set(step.absent) == found.keys()


@pytest.mark.parametrize("other", [{"batch": str(uuid.uuid4())}, {"attempt": 2}, {"batch": ""}])
def test_a_file_of_another_batch_or_attempt_does_not_count(other: dict[str, object]) -> None:
    assert next_step(Batch(files=FILES, rows={1: 1}), content({1: 1}, **other)) == Write()  # type: ignore[arg-type]
    assert next_step(Batch(files=FILES, rows={1: 1}), content({1: 1})) == Remove(())


def test_every_attempt_has_a_name_of_its_own() -> None:
    assert FILES.name == "outbox-1-5f3a91c0000040008000000000000001-3.parquet"
    assert [name.rpartition("-")[2] for name in FILES.superseded] == [
        "1.parquet", "1.parquet.part", "2.parquet", "2.parquet.part",
    ]  # fmt: skip
    assert FILES.name not in FILES.superseded
    assert stem_of(TableName(table="../a b/ü")) == "..%2Fa%20b%2F%C3%BC"


def test_a_place_is_a_table_or_an_absolute_directory() -> None:
    assert target_of("table") is TO_TABLE
    assert target_of("/a/b") == ToDirectory(Path("/a/b"))
    assert target_of("b", base=Path("/a")) == ToDirectory(Path("/a/b"))
    for bad in ("", "b", "a\0b"):
        with pytest.raises(InvalidInput, match="'table' or a directory"):
            target_of(bad)


def test_each_directory_keeps_an_id_of_its_own(tmp_path: Path) -> None:
    first = ArchiveDirectory(tmp_path / "a")
    assert ArchiveDirectory(tmp_path / "a").id == first.id == id_of(tmp_path / "a")
    assert ArchiveDirectory(tmp_path / "b").id != first.id
    assert id_of(tmp_path) is None
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".thresher-archive"]


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path / "a")

    def fail() -> None:
        with directory.unfinished("x") as file:
            file.write(b"some")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ArchiveTrouble, match="none of its rows has left"):
        fail()
    assert not list((tmp_path / "a").glob("x*"))
    with directory.unfinished("x") as file:
        file.write(b"all")
    assert not (tmp_path / "a" / "x").exists()
    directory.give_final_name("x")
    assert (tmp_path / "a" / "x").read_bytes() == b"all"
    with pytest.raises(ArchiverBusy, match="another archiver has removed"):
        directory.give_final_name("x")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, ArchiveRefused),
        (errno.EROFS, ArchiveRefused),
        (errno.ENOSPC, ArchiveTrouble),
        (5, ArchiveTrouble),
    ],
)
def test_errors_say_whether_a_person_has_to_act(number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="/a cannot be used"), explained(Path("/a")):
        raise OSError(number, "why")
    assert (ArchiveRefused.exit_code, ArchiveTrouble.exit_code, ArchiverBusy.exit_code) == (4, 1, 1)
    assert (ArchiveRefused.retryable, ArchiveTrouble.retryable, ArchiverBusy.retryable) == (False, True, True)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60), st.integers(1, 9))
def test_a_search_ends_only_after_many_young_windows(windows: list[tuple[int, int]], wanted: int) -> None:
    search, due, young = Search(wanted=wanted), 0, 0
    for each_due, each_young in windows:
        due += each_due
        young = 0 if each_due else young + (each_young > 0)
        step = looked_at(search, Window(last=1, due=each_due, young=each_young, full=True))
        if due >= wanted or (due and young >= YOUNG_WINDOWS):
            assert step == Found()
            return
        if young >= YOUNG_WINDOWS:
            assert step == NothingDue()
            return
        assert isinstance(step, Search)
        search = step
    end = looked_at(search, Window(last=None, due=0, young=0, full=False))
    assert end == (Found() if due else NothingDue())


def test_windows_of_waiting_rows_end_no_search() -> None:
    search = Search(wanted=1)
    for _ in range(YOUNG_WINDOWS * 3):
        step = looked_at(search, Window(last=1, due=0, young=0, full=True))
        assert isinstance(step, Search)
        search = step


def test_a_leader_pauses_between_runs() -> None:
    assert [pause_seconds(each) for each in (1, 3600, 7 * 86_400)] == [1, 36, 600]


def test_no_secret_is_shown() -> None:
    job = ArchiveJob(dsn="password=x1", outbox=TableName(table="o"), target=TO_TABLE, older_than_seconds=1)
    assert "x1" not in repr(job)
