"""Every bench and every soak starts: no name hides another one, or a module of the standard library."""

import subprocess

import pytest

from tests.processes import ROOT, environment

PROGRAMS = [(kind, file.stem) for kind in ("bench", "soak") for file in sorted((ROOT / kind).glob("*.py"))]


@pytest.mark.parametrize(("kind", "name"), PROGRAMS)
def test_every_bench_and_soak_prints_its_options(kind: str, name: str) -> None:
    answer = subprocess.run(
        [str(ROOT / "run"), kind, name, "--help"], capture_output=True, timeout=150, check=False, env=environment()
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"usage: {name}.py".encode())
