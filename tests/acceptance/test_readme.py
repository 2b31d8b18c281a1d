"""The README's examples, run unchanged."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.processes import environment
from thresher.delivery.stored_rows import batch_of
from thresher.delivery.transforms import run
from thresher.harvest.configuration import load

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 11, 15, tzinfo=UTC)
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_pipeline_example_runs(tmp_path: Path) -> None:
    (example,) = blocks("python", (ROOT / "docs" / "pipelines.md").read_text())
    program = tmp_path / "squares.py"
    program.write_text(example)
    answer = subprocess.run(
        [sys.executable, program], env=environment(), capture_output=True, text=True, timeout=170, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [str(sum(number**2 for number in range(100)))]
    assert not answer.stderr, "a run in which nothing is wrong is quiet"


def test_the_relays_configuration_is_valid(tmp_path: Path) -> None:
    (example,) = blocks("yaml")
    path = tmp_path / "relay.yaml"
    path.write_text(example)
    settings = load(path, {}).settings
    assert (settings.name, settings.transforms) == ("orders", ("orders_relay:no_drafts",))


def test_the_transform_example_filters() -> None:
    _, _, example = blocks("python")
    found: dict[str, Any] = {}
    exec(example, found)  # noqa: S102 - it is our own
    rows: list[tuple[Any, ...]] = [
        (n, AT, topic, b"k", b"v", [], [], None, None) for n, topic in enumerate(("drafts", "orders"))
    ]
    done = run([("orders_relay:no_drafts", found["no_drafts"])], batch_of(rows))
    assert done.batch.column("topic").to_pylist() == ["orders"]
    assert done.failed == {}


@pytest.mark.timeout(300)
def test_the_tour_writes_relays_and_reads_back(state: Path, tmp_path: Path) -> None:
    both, up, tour = blocks("console")
    assert both.split("\n")[:2] == ["./run demo", "./run test"]
    # A directory in which the commands run unchanged.
    (tmp_path / "run").symlink_to(ROOT / "run")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name, program in zip(("orders.py", "read_back.py"), blocks("python"), strict=False):
        (tmp_path / name).write_text(program)
    clean = {name: value for name, value in environment(THRESHER_STATE=str(state)).items() if name != "THRESHER_DS"}

    def shell(script: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-euxc", script], cwd=tmp_path, env=clean, timeout=250, capture_output=True, text=True, check=False
        )

    try:
        # The program runs a second time in the same way.
        answer = shell(f"{up}{tour}kill -INT $!\nwait $!\n.venv/bin/python orders.py\necho $THRESHER_DS")
        assert answer.returncode == 0, answer.stderr
        *printed, dsn = answer.stdout.splitlines()
        assert '1 {"item": "a scythe"}' in printed
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (1,), "the first was relayed"
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2,)
    finally:
        ended = shell("./run stack down --discard")
    assert ended.returncode == 0, ended.stderr


def test_ci_runs_the_gates_and_the_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-2:] == ["./run check", "./run test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_tests_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / name).exists(), name
