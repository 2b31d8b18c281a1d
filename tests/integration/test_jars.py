import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thresher.core.directories import PlaceUnusable
from thresher.devstack import jars
from thresher.devstack.problem import JarMismatch, StackProblem

VERSION = "4.2.1"
FETCH = f"from thresher.devstack.jars import jars_of; print(jars_of({VERSION!r}))"


@pytest.fixture(scope="module")
def locked() -> Path:
    """Return the genuine jars, from the cache that all test runs share."""
    return jars.jars_of(VERSION)


@pytest.fixture
def repository(locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the network by a repository on disk, and the cache by an empty one."""
    directory = tmp_path / "repository"
    directory.mkdir()
    for jar in locked.glob("*.jar"):
        (directory / jar.name).symlink_to(jar)
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers><filesystem name="disk" checksums="">'
        f'<artifact pattern="{directory}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("THRESHER_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "cache"))
    return directory


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if path.is_dir())


def test_the_lock_files_name_every_jar_once() -> None:
    for version in jars.VERSIONS:
        locked = jars.read_lock(version)
        assert len({jar.file for jar in locked}) == len(locked) > 40
        assert all(len(jar.sha256) == 64 for jar in locked)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(StackProblem, match=r"Kafka 1.0.0 has no lock file; choose one of 4.2.1, 3.9.1"):
        jars.read_lock("1.0.0")


def test_all_jars_are_fetched_with_progress_and_nothing_else_remains(repository: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    directory = jars.jars_of(VERSION, lambda *step: steps.append(step))
    wanted = {jar.file for jar in jars.read_lock(VERSION)}
    assert {path.name for path in directory.iterdir()} == wanted
    assert [done for _, done, _ in steps] == list(range(1, len(wanted) + 1))
    assert cached(tmp_path) == [directory.name]


def test_a_second_run_asks_no_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = jars.jars_of(VERSION)
    monkeypatch.setattr(jars, "fetch", None)
    assert jars.jars_of(VERSION) == first


def test_a_jar_changed_in_the_repository_is_named_not_used(repository: Path, tmp_path: Path) -> None:
    victim = repository / "kafka-clients-4.2.1.jar"
    victim.unlink()
    victim.write_bytes(b"not the jar")
    with pytest.raises(JarMismatch, match=r"kafka-clients-4.2.1.jar has SHA-256"):
        jars.jars_of(VERSION)
    assert cached(tmp_path) == []


def test_a_jar_changed_in_the_cache_is_named_not_used(repository: Path) -> None:
    directory = jars.jars_of(VERSION)
    victim = directory / "kafka-clients-4.2.1.jar"
    content = bytearray(victim.read_bytes())
    content[1000] ^= 1
    victim.write_bytes(content)
    with pytest.raises(JarMismatch, match=rf"kafka-clients-4.2.1.jar has SHA-256.*remove {directory}"):
        jars.jars_of(VERSION)


def test_jars_that_another_user_could_change_are_not_used(repository: Path) -> None:
    directory = jars.jars_of(VERSION)
    jar = sorted(directory.glob("*.jar"))[0]
    jar.chmod(0o666)
    with pytest.raises(JarMismatch, match=f"every user may write to {jar}"):
        jars.jars_of(VERSION)
    jar.chmod(0o644)
    directory.parent.chmod(0o777)
    with pytest.raises(PlaceUnusable, match=f"every user may write to {directory.parent}. Set THRESHER_CACHE"):
        jars.jars_of(VERSION)
    shutil.rmtree(directory)
    with pytest.raises(PlaceUnusable, match=f"every user may write to {directory.parent}"):
        jars.jars_of(VERSION)
    assert not directory.exists()


def test_a_jar_that_is_not_locked_is_not_run(repository: Path) -> None:
    directory = jars.jars_of(VERSION)
    (directory / "evil.jar").write_bytes(b"")
    assert "evil" not in jars.classpath(VERSION)
    assert len(jars.classpath(VERSION).split(":")) == len(jars.read_lock(VERSION))


def test_a_jar_missing_in_the_repository_is_named(repository: Path, tmp_path: Path) -> None:
    (repository / "kafka-clients-4.2.1.jar").unlink()
    with pytest.raises(StackProblem, match="kafka-clients"):
        jars.jars_of(VERSION)
    assert cached(tmp_path) == []


def test_a_half_finished_download_is_never_used(repository: Path, tmp_path: Path) -> None:
    directory = jars.jars_of(VERSION)
    # A kill during the download leaves a temporary file and no jar.
    stage = directory.with_name(f"{directory.name}.stage")
    directory.rename(stage)
    for jar in list(stage.glob("*.jar"))[10:]:
        jar.unlink()
    assert jars.jars_of(VERSION) == directory
    assert len(list(directory.glob("*.jar"))) == len(jars.read_lock(VERSION))
    assert cached(tmp_path) == [directory.name]


def test_runs_that_start_together_fetch_once(repository: Path, tmp_path: Path) -> None:
    runs = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {run.communicate(timeout=300)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(answers) == 1
    assert len(cached(tmp_path)) == 1


def test_an_unwritable_cache_is_named_with_its_variable(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not even root can make a directory there.
    monkeypatch.setenv("THRESHER_CACHE", "/proc/thresher")
    with pytest.raises(PlaceUnusable, match=r"cannot use /proc/thresher.*THRESHER_CACHE"):
        jars.jars_of(VERSION)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Provide a directory with room for 10 MB: a small file system, or a limit on file sizes if mounting is refused."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = (
        shutil.which("mount")
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", place], capture_output=True, check=False
        ).returncode
        == 0
    )
    limit = [] if mounted else ["import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))"]
    yield place, limit
    if mounted:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_while_fetching_leaves_no_usable_jar(repository: Path, small_disk: tuple[Path, list[str]]) -> None:
    place, limit = small_disk
    lines = [*limit, "import json", "from thresher.devstack.problem import StackProblem"]
    lines += ["try:", f"    {FETCH}", "except StackProblem as error:", "    print(json.dumps(str(error)))"]
    script = "\n".join(lines)
    environment = {**os.environ, "THRESHER_CACHE": str(place / "cache")}
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300, check=True
    )
    problem = json.loads(answer.stdout)
    assert "could not fetch" in problem
    assert "No space left" in problem or "File too large" in problem
    assert [path for path in (place / "cache").iterdir() if path.is_dir()] == []
