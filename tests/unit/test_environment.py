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


def test_what_was_packed_runs_elsewhere_from_there_alone(unpacked: Path) -> None:
    answer = python(unpacked, "import sys, thresher, typer, rich; print(thresher.__file__, typer.__file__, sys.prefix)")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(str(unpacked)) == 3


@pytest.mark.parametrize("module", ["pyspark", "py4j", "pytest", "pyarrow"])
def test_spark_and_what_was_not_asked_for_stay_out(unpacked: Path, module: str) -> None:
    assert "ModuleNotFoundError" in python(unpacked, f"import {module}").stderr


def test_spark_stays_out_of_a_whole_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "e.tar.gz", only=["pyspark", "typer"])
    with tarfile.open(tmp_path / "e.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "pyspark" in name or "py4j" in name]


def test_a_package_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackImpossible, match="not installed, so they cannot be packed: no-such-thing"):
        pack(tmp_path / "e.tar.gz", only=["typer", "no-such-thing"])
    assert not list(tmp_path.iterdir())


def test_the_name_must_be_one_that_spark_unpacks(tmp_path: Path) -> None:
    with pytest.raises(PackImpossible, match=r"must end in \.tar\.gz"):
        pack(tmp_path / "environment", only=["typer"])


def test_the_command_reports_what_it_packed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thresher", "spark", "pack", str(tmp_path / "e.tgz"), "--only", "typer", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert '"packages": ' in answer.stdout
    refused = subprocess.run([*command[:-2], "no-such-thing"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "not installed" in refused.stderr
