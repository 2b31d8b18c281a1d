import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from thresher.core.java import Java
from thresher.devstack.broker_classes import archive_option
from thresher.devstack.problem import StackProblem


class Runs:
    """Plays brokers that run once: each writes the archive when it stops, as Java does."""

    def __init__(self, *, error: StackProblem | None = None, writes: bool = True, killed: bool = False) -> None:
        self.directories: list[Path] = []
        self._error, self._writes, self._killed = error, writes, killed

    def __call__(self, directory: Path, option: str) -> bool:
        self.directories.append(directory)
        if self._error is not None:
            raise self._error
        name, _, path = option.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        if self._writes:
            Path(path).write_bytes(b"classes")
        return not self._killed


Ask = Callable[[Runs], str | None]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kafka"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    server = tmp_path / "java" / "lib" / "server"
    server.mkdir(parents=True)
    (server / "classes.jsa").touch()
    return Java(executable=tmp_path / "java" / "bin" / "java", major=17, version="17.0.1")


@pytest.fixture
def ask(tmp_path: Path, java: Java, cache: Path) -> Ask:
    (tmp_path / "jars").mkdir()
    return lambda runs: archive_option(java, tmp_path / "jars", "4.2.1", runs)


def test_the_first_stack_makes_the_archive_for_all(ask: Ask, cache: Path) -> None:
    first, second = Runs(), Runs()
    option = ask(first)
    (made,) = cache.glob("kafka-4.2.1-*.jsa")
    assert option == f"-XX:SharedArchiveFile={made}"
    assert ask(second) == option
    assert len(first.directories) == 1
    assert not second.directories
    assert not first.directories[0].parent.exists()


def test_a_broker_that_does_not_start_costs_only_the_archive(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(Runs(error=StackProblem("kafka-1 did not start"))) is None
    assert "Kafka starts without an archive of its classes: kafka-1 did not start" in caplog.text


def test_an_archive_that_a_killed_broker_wrote_is_not_kept(
    ask: Ask, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(Runs(killed=True)) is None
    assert not list(cache.glob("*.jsa"))
    assert "the broker was killed before it had written one" in caplog.text


@pytest.mark.parametrize("failing", [Runs(error=StackProblem("no")), Runs(writes=False), Runs(killed=True)])
def test_a_failure_is_not_repeated_for_a_day(ask: Ask, cache: Path, failing: Runs) -> None:
    assert ask(failing) is None
    soon = Runs()
    assert ask(soon) is None
    assert not soon.directories
    (failure,) = cache.glob("*.failed")
    yesterday = time.time() - 25 * 3600
    os.utime(failure, (yesterday, yesterday))
    assert ask(Runs()) is not None


def test_a_lock_of_another_user_costs_only_the_archive(ask: Ask, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A directory cannot be opened for writing, even by root.
    (cache / "lock").mkdir(parents=True)
    runs = Runs()
    assert ask(runs) is None
    assert not runs.directories
    assert "Kafka starts without an archive of its classes: " in caplog.text


def test_a_java_without_an_archive_of_its_own_makes_none(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "java" / "lib" / "server" / "classes.jsa").unlink()
    runs = Runs()
    assert ask(runs) is None
    assert not runs.directories


def test_an_unusable_cache_costs_only_the_archive(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("THRESHER_CACHE", str(tmp_path / "file" / "below"))
    runs = Runs()
    assert ask(runs) is None
    assert not runs.directories
    assert "without an archive of its classes" in caplog.text
