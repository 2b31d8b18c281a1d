"""`./run` from a copy of the checkout, at a path with spaces, and without a network the second time."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import environment, open_directory

ROOT = Path(__file__).parents[2]
# No proxy answers at this address: a program that needs the network fails.
NO_NETWORK = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:1"
)


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    directory = open_directory() / "a checkout with spaces"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    yield directory
    shutil.rmtree(directory.parent)


def run(copy: Path, *arguments: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    # The packages are in uv's cache since this environment was made, and the environment has uv itself.
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "UV_OFFLINE": "1", **variables}
    return subprocess.run(
        [copy / "run", *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.timeout(900)
def test_the_run_script_sets_up_anywhere_and_then_works_offline(copy: Path, tmp_path: Path) -> None:
    first = run(copy, "--version", cwd=tmp_path)
    if first.returncode != 0:
        # uv's cache was cleaned: then the network is used, as on a new machine.
        first = run(copy, "--version", cwd=tmp_path, UV_OFFLINE="0")
    assert first.returncode == 0, first.stderr
    assert (first.stdout, "making the environment" in first.stderr) == ("thresher 0.1.0\n", True)
    again = run(copy, "--version", cwd=Path("/"), **NO_NETWORK)
    assert (again.returncode, again.stdout, again.stderr) == (0, "thresher 0.1.0\n", "")
    demo = run(copy, "demo", "--records", "1000", cwd=tmp_path, **NO_NETWORK)
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout.splitlines()[-1] == "lost 0, phantom 0, duplicated 0, out of order 0, altered 0"
    assert "kills" in demo.stdout
    for figure in ("written", "relayed", "pending", "oldest", "rec/s", "latency p50"):
        assert figure in demo.stderr
    report = (tmp_path / "thresher-demo.html").read_text()
    assert report.count(">kill -9</text>") == 3, "each plot marks the kill"
    assert "lost 0, phantom 0" in report
    bench = run(copy, "bench", "nonsense", cwd=tmp_path)
    benches = sorted(each.stem for each in (ROOT / "bench").glob("*.py"))
    assert (bench.returncode, f"one of: {' '.join(benches)}" in bench.stderr) == (1, True)


def test_the_queues_demo_loses_no_message() -> None:
    # In the environment of the tests: the modules of a new one would have to be compiled first.
    command = [sys.executable, "-m", "thresher", "demo", "queue", "--records", "1000"]
    queue = subprocess.run(
        command, env=environment(**NO_NETWORK), capture_output=True, text=True, timeout=300, check=False
    )
    assert queue.returncode == 0, queue.stderr
    assert queue.stdout.splitlines()[-1] == "0 messages were not processed"


def test_every_package_that_the_project_requires_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    pinned = (ROOT / "requirements" / "dev.txt").read_text()
    for requirement in wanted:
        name = requirement.split(">")[0].split("=")[0].split("[")[0]
        assert f"\n{name}==" in pinned, name


def test_no_file_names_a_registrys_host() -> None:
    hosts = ["pypi" + ".org", "files.python" + "hosted", "repo1." + "maven", "repo.maven" + ".apache"]
    found = subprocess.run(
        ["git", "grep", "-lE", "|".join(hosts).replace(".", r"\.")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
    assert not (ROOT / "uv.lock").exists()
