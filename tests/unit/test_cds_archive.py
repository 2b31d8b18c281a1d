import logging
import os
import tempfile
from pathlib import Path

import pytest

from thresher.core.cds_archive import CdsArchive
from thresher.core.java import Java

JAVA = Java(executable=Path("/usr/bin/java"), major=17, version="17.0.1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "jars").mkdir()
    return tmp_path / "cache" / "spark"


def archive(tmp_path: Path, *, java: Java = JAVA, version: str = "4.2.0", make: bool = True) -> CdsArchive:
    return CdsArchive(
        "Spark", java, tmp_path / "jars", version, make=make, workplace=Path(tempfile.mkdtemp(dir=tmp_path))
    )


def stage(made: CdsArchive, content: bytes = b"classes") -> Path:
    """Write the archive file, as Java does when it exits."""
    (option,) = [each for each in made.java_options() if "ArchiveClassesAtExit" in each]
    path = Path(option.partition("=")[2])
    path.write_bytes(content)
    return path


def test_the_next_program_finds_the_archive(tmp_path: Path) -> None:
    first = archive(tmp_path)
    assert first.found is None
    stage(first)
    first.keep()
    second = archive(tmp_path)
    assert second.found is not None
    assert f"-XX:SharedArchiveFile={second.found}" in second.java_options()


@pytest.mark.parametrize(
    "other",
    [
        {"java": Java(executable=Path("/usr/bin/java"), major=17, version="17.0.2")},
        {"java": Java(executable=Path("/opt/java"), major=17, version="17.0.1")},
        {"version": "4.2.1"},
    ],
)
def test_another_java_or_spark_does_not_find_the_archive(tmp_path: Path, other: dict[str, object]) -> None:
    made = archive(tmp_path)
    stage(made)
    made.keep()
    assert archive(tmp_path, **other).found is None  # type: ignore[arg-type]


def test_an_archive_of_changed_jars_is_not_found(tmp_path: Path) -> None:
    made = archive(tmp_path)
    stage(made)
    made.keep()
    os.utime(tmp_path / "jars", (1, 1))
    assert archive(tmp_path).found is None


def test_programs_that_make_archives_concurrently_do_not_collide(tmp_path: Path, cache: Path) -> None:
    makers = [archive(tmp_path) for _ in range(3)]
    stages = {stage(maker) for maker in makers}
    assert len(stages) == 3
    for maker in makers:
        maker.keep()
    assert archive(tmp_path).found is not None
    assert [path.suffix for path in cache.iterdir()] == [".jsa"]


def test_an_archive_of_a_killed_java_is_not_used(tmp_path: Path, cache: Path) -> None:
    stage(archive(tmp_path))
    assert not list(cache.iterdir())
    assert archive(tmp_path).found is None


def test_a_java_that_made_no_archive_is_noted(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive(tmp_path).keep()
    assert "could not be kept" in caplog.text
    assert not list(cache.iterdir())


@pytest.mark.parametrize("damage", [b"", b"class", b"CLASSES"])
def test_a_damaged_archive_is_removed_with_a_note(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made = archive(tmp_path)
    stage(made)
    made.keep()
    found = archive(tmp_path).found
    assert found is not None
    found.write_bytes(damage)
    assert archive(tmp_path).found is None
    assert "is damaged" in caplog.text
    assert not found.exists()


def test_an_unwritable_cache_is_only_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "file" / "below"))
    made = archive(tmp_path)
    assert made.java_options() == ()
    assert "without an archive of its classes" in caplog.text
    made.keep()


def test_complaints_of_java_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = archive(tmp_path)
    stage(made)
    made.keep()
    user = archive(tmp_path)
    user.log.write_text("")
    with caplog.at_level(logging.INFO):
        user.warn_if_unused()
    assert not caplog.text
    user.log.write_text("[0.045s][warning][cds,dynamic] Unable to use shared archive.\nmore\n")
    user.warn_if_unused()
    assert "Unable to use shared archive." in caplog.text


def test_old_leftovers_go_at_the_next_start(tmp_path: Path, cache: Path) -> None:
    archive(tmp_path)
    for name, age in (("spark-1-x.1-1.draft", 7200), ("spark-1-y.2-2.draft", 60), ("spark-1-z-0.jsa", 90 * 86400)):
        (cache / name).touch()
        os.utime(cache / name, (cache.stat().st_mtime - age,) * 2)
    archive(tmp_path)
    assert {path.name for path in cache.iterdir()} == {"spark-1-y.2-2.draft"}


def test_no_archive_is_made_when_switched_off(tmp_path: Path) -> None:
    assert archive(tmp_path, make=False).java_options() == ()


@pytest.mark.parametrize("place", ["file", "directory", "above"])
def test_an_archive_that_others_may_write_is_not_used(
    tmp_path: Path, cache: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = archive(tmp_path)
    stage(made)
    made.keep()
    found = archive(tmp_path).found
    assert found is not None
    writable = {"file": found, "directory": cache, "above": cache.parent}[place]
    writable.chmod(0o777)
    user = archive(tmp_path)
    assert user.found is None
    assert f" may write to {writable}" in caplog.text
    assert place == "file" or user.java_options() == ()


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_an_archive_of_a_permissive_umask_is_used(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = archive(tmp_path)
        stage(made)
        made.keep()
    finally:
        os.umask(before)
    assert archive(tmp_path).found is not None
