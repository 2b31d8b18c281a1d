from collections.abc import Callable
from pathlib import Path

import pytest

from thresher.core.java import Java
from thresher.devstack.broker_classes import archive_option
from thresher.devstack.problem import StackProblem


class Runs:
    """Plays brokers that run once: each writes the archive when it stops, as Java does."""

    def __init__(self, content: bytes = b"classes", error: StackProblem | None = None) -> None:
        self.directories: list[Path] = []
        self._content, self._error = content, error

    def __call__(self, directory: Path, option: str) -> None:
        self.directories.append(directory)
        if self._error is not None:
            raise self._error
        name, _, path = option.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        Path(path).write_bytes(self._content)


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
    assert ask(Runs()) is not None


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
