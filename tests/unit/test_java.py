import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import open_directory
from thresher.core.java import JavaMissing, find_java


def java(home: Path, version: str, *, status: int = 0) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {status}\n")
    executable.chmod(0o755)
    return executable


def test_java_home_comes_first(tmp_path: Path) -> None:
    executable = java(tmp_path / "home", "21.0.2")
    other = java(tmp_path / "path", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}, homes=tmp_path / "none")
    assert (found.executable, found.major) == (executable, 21)


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    java(tmp_path / "home", "1.8.0_402")
    java(tmp_path / "jvm" / "java-11", "11.0.2")
    executable = java(tmp_path / "jvm" / "java-17", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "home")}, homes=tmp_path / "jvm")
    assert (found.executable, found.major) == (executable, 17)


def test_missing_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"Java 17 or 21 is needed.*apt-get install openjdk-17-jre-headless"):
        find_java({"PATH": str(tmp_path)}, homes=tmp_path)


def test_java_too_old_names_what_was_found(tmp_path: Path) -> None:
    old = java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing, match=f"{old} is Java 11"):
        find_java({"PATH": str(old.parent)}, homes=tmp_path / "none")


def test_java_too_new_is_not_guessed_to_work(tmp_path: Path) -> None:
    new = java(tmp_path / "new", "26")
    with pytest.raises(JavaMissing, match="is Java 26"):
        find_java({"JAVA_HOME": str(new.parent.parent)}, homes=tmp_path / "none")


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    broken = java(tmp_path / "broken", "17", status=1)
    with pytest.raises(JavaMissing, match=f"{broken} does not run"):
        find_java({"PATH": str(broken.parent)}, homes=tmp_path / "none")


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop root's privileges, because root can read every directory."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_an_unreadable_directory_is_skipped() -> None:
    place = open_directory()
    closed = java(place / "closed", "17.0.1").parent
    executable = java(place / "open", "17.0.15")
    closed.chmod(0)
    try:
        with without_privileges():
            found = find_java({"PATH": os.pathsep.join([str(closed), str(executable.parent)])}, homes=place / "none")
    finally:
        closed.chmod(0o755)
        shutil.rmtree(place)
    assert found.executable == executable
