import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from thresher.spark.session.environment import PackImpossible, pack


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pack")
    pack(directory / "environment.tar.gz", only=["typer"])
    with tarfile.open(directory / "environment.tar.gz") as archive:
        archive.extractall(directory / "elsewhere", filter="fully_trusted")  # noqa: S202 - we packed it
    return directory / "elsewhere"


def python(unpacked: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [unpacked / "bin" / "python", "-c", code], capture_output=True, text=True, cwd=unpacked, env={}, check=False
    )


def test_a_packed_environment_runs_elsewhere_by_itself(unpacked: Path) -> None:
    answer = python(unpacked, "import sys, thresher, typer, rich; print(thresher.__file__, typer.__file__, sys.prefix)")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(str(unpacked)) == 3


@pytest.mark.parametrize("module", ["pyspark", "py4j", "pytest", "pyarrow"])
def test_spark_and_unrequested_packages_are_not_packed(unpacked: Path, module: str) -> None:
    assert "ModuleNotFoundError" in python(unpacked, f"import {module}").stderr


def test_spark_is_not_packed_with_a_whole_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "e.tar.gz", only=["pyspark", "typer"])
    with tarfile.open(tmp_path / "e.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "pyspark" in name or "py4j" in name]


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackImpossible, match="not installed, so they cannot be packed: no-such-thing"):
        pack(tmp_path / "e.tar.gz", only=["typer", "no-such-thing"])
    assert not list(tmp_path.iterdir())


def test_the_archive_name_needs_a_suffix_that_spark_unpacks(tmp_path: Path) -> None:
    with pytest.raises(PackImpossible, match=r"must end in \.tar\.gz"):
        pack(tmp_path / "environment", only=["typer"])


def test_the_command_reports_the_packed_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thresher", "spark", "pack", str(tmp_path / "e.tgz"), "--only", "typer", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert '"packages": ' in answer.stdout
    refused = subprocess.run([*command[:-2], "no-such-thing"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "not installed" in refused.stderr
