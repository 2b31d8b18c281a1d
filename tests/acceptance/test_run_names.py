"""Every bench and every soak starts: no name hides another one, or a module of the standard library."""

import subprocess
import sys

import pytest

from tests.processes import PYTHON_PATH, ROOT, environment

PROGRAMS = [(kind, file.stem) for kind in ("bench", "soak") for file in sorted((ROOT / kind).glob("*.py"))]
# Imports what most programs need, then runs each program in a fork, with the import path that `./run` gives it.
FORKS = """
import os, runpy, sys
import tests.relay.mixed_subject, bench.measuring.place
for program in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        sys.argv[:] = [program, "--help"]
        runpy.run_path(program, run_name="__main__")
        raise AssertionError("it has not printed its options")
    if os.wait()[1] != 0:
        sys.exit(f"{program} failed")
"""


@pytest.mark.parametrize("kind", ["bench", "soak"])
def test_a_program_named_as_a_standard_module_starts(kind: str) -> None:
    answer = subprocess.run(
        [str(ROOT / "run"), kind, "queue", "--help"], capture_output=True, timeout=150, check=False, env=environment()
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(b"usage: queue.py")


def test_every_bench_and_soak_prints_its_options() -> None:
    answer = subprocess.run(
        [sys.executable, "-P", "-c", FORKS, *(str(ROOT / kind / f"{name}.py") for kind, name in PROGRAMS)],
        capture_output=True, text=True, timeout=150, check=False, env=environment(PYTHONPATH=PYTHON_PATH),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    told = [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("usage: ")]
    assert told == [f"{name}.py" for _, name in PROGRAMS]
