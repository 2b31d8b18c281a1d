"""The process that `thresher status` asks."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.processes import environment
from thresher.cli.app import app
from thresher.cli.status.asking import RelayUnreachable, ask
from thresher.cli.status.command import chosen_file
from thresher.cli.status.running import listed, running
from thresher.core.errors import InvalidInput
from thresher.observe.server import Server

LISTED = """
import sys, time
from pathlib import Path
from thresher.cli.status.running import listed
with listed(kind="relay", name="gone", host="127.0.0.1", port=1, config=None):
    print("listed", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("THRESHER_STATUS", "THRESHER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("THRESHER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


class Shown:
    """A process with a status page."""

    def __init__(self, name: str, role: str = "leading", **more: Any) -> None:
        self.name = name
        self.server = Server("127.0.0.1", 0, {"/status": lambda: {"name": name, "role": role, **more}})

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def listed(self, config: Path | None) -> Any:
        return listed(kind="relay", name=self.name, host="0.0.0.0", port=self.server.port, config=config)  # noqa: S104


@pytest.fixture
def shown() -> Iterator[list[Shown]]:
    made = [Shown(name) for name in ("orders", "audit")]
    with made[0].server, made[1].server:
        yield made


def asked(*arguments: str) -> dict[str, Any]:
    answer = CliRunner().invoke(app, ["status", "--json", *arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def files(directory: Path) -> list[Path]:
    paths = [directory / "orders.yaml", directory / "audit.yaml"]
    for path in paths:
        path.write_text(f"name: {path.stem}\n")
    return paths


def test_the_process_of_a_file_is_asked(shown: list[Shown], tmp_path: Path) -> None:
    orders, audit = files(tmp_path)
    with shown[0].listed(orders), shown[1].listed(audit):
        assert asked("-c", str(orders))["name"] == "orders"
        assert asked("-c", str(audit))["name"] == "audit"


def test_several_processes_are_listed_without_a_file(shown: list[Shown]) -> None:
    with shown[0].listed(None), shown[1].listed(None):
        found = asked()["running"]
        assert [(each["name"], each["at"], each["role"]) for each in found] == [
            ("audit", shown[1].at, "leading"),
            ("orders", shown[0].at, "leading"),
        ]
    with shown[0].listed(None):
        assert asked()["name"] == "orders", "a single process is asked"
    assert running() == []


def test_the_leader_is_named_among_processes_of_a_file(shown: list[Shown], tmp_path: Path) -> None:
    file, standby = files(tmp_path)[0], Shown("orders", "standby")
    with standby.server, shown[0].listed(file), standby.listed(file):
        answer = CliRunner().invoke(app, ["status", "-c", str(file)], catch_exceptions=False)
        told = " ".join(answer.output.split())
        assert f"leads: thresher status --at {shown[0].at} shows it" in told
        assert "-c FILE" not in told


def test_no_process_is_named_among_several_standbys(tmp_path: Path) -> None:
    file, first, second = files(tmp_path)[0], Shown("orders", "standby"), Shown("orders", "standby")
    with first.server, second.server, first.listed(file), second.listed(file):
        answer = CliRunner().invoke(app, ["status", "-c", str(file)], catch_exceptions=False)
        assert "none of them leads" in answer.output


@pytest.mark.parametrize(
    ("leader", "who"), [("process 7 on db1", "process 7 on db1 leads"), (None, "who leads is not known here")]
)
def test_a_standby_says_who_leads(leader: str | None, who: str) -> None:
    standby = Shown("orders", "standby", leader=leader, waiting_for=None, servers={})
    with standby.server:
        answer = CliRunner().invoke(app, ["status", "--at", standby.at], catch_exceptions=False)
    assert answer.output == f"orders stands by here: {who}\n"


def test_an_absent_process_is_reported_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
    for at, words in ((nowhere, f"nothing runs at {nowhere}: start"), ("nosuch.invalid:1", "cannot be reached")):
        with pytest.raises(RelayUnreachable, match=words) as unreachable:
            ask(at)
        assert "urlopen" not in str(unreachable.value)
    with Server("127.0.0.1", 0, {}) as other, pytest.raises(RelayUnreachable, match="is no relay"):
        ask(f"127.0.0.1:{other.port}")


def test_an_unlisted_process_is_asked_at_its_configured_address(shown: list[Shown], tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(f"name: orders\nstatus: {shown[0].at}\n")
    assert asked("-c", str(path))["name"] == "orders"
    path.write_text(f"name: orders\nstatus: {shown[1].at}\n")
    answer = CliRunner().invoke(app, ["status", "-c", str(path)])
    assert "is 'audit'" in str(answer.exception)


def test_a_killed_process_is_not_listed(state: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LISTED], stdout=subprocess.PIPE, text=True, env=environment(THRESHER_STATE=str(state))
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listed\n"
    assert [each.name for each in running()] == ["gone"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert running() == []
    assert list((state / "running").glob("*.json")) == [], "its stale entry is removed"


def test_other_users_cannot_open_a_listed_processs_file(state: Path) -> None:
    """Whoever may open it can lock it, and so keep it on the list after the process."""
    with listed(kind="relay", name="orders", host="127.0.0.1", port=1, config=None):
        (file,) = (state / "running").glob("*.json")
        assert file.stat().st_mode & 0o077 == 0


def test_a_process_that_cannot_be_listed_still_runs(state: Path) -> None:
    state.parent.mkdir(exist_ok=True)
    state.write_text("a file in its place")
    with listed(kind="relay", name="orders", host="127.0.0.1", port=1, config=None):
        assert running() == []


def test_a_flag_overrides_the_environment() -> None:
    at, path = "127.0.0.1:1", Path("relay.yaml")
    assert chosen_file(at, path, {"THRESHER_STATUS": at}) == path
    assert chosen_file(at, path, {"THRESHER_CONFIG": "relay.yaml"}) is None
    with pytest.raises(InvalidInput, match="leave one of them out"):
        chosen_file(at, path, {})


@pytest.mark.parametrize(
    ("ready", "reason", "first"),
    [
        (True, "capturing", "capture shop: running, ready"),
        (False, "no-spark-slot", "capture shop: running, not ready: no-spark-slot"),
    ],
)
def test_the_first_line_says_whether_the_process_is_ready(ready: bool, reason: str, first: str) -> None:
    page: dict[str, Any] = {
        "state": "running", "ready": ready, "reason": reason, "captured": 1, "rows_per_s": 0.0, "dead": 0, "lag": 0,
        "topics": {}, "shards": [], "alarms": {"shard 1": "no slot"}, "waiting_for": None,
        "servers": {"broker": {"up": False, "trouble": "it is gone"}},
    }  # fmt: skip
    with Shown("shop", **page).server as server:
        told = CliRunner().invoke(app, ["status", "--at", f"127.0.0.1:{server.port}"])
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0] == first
    assert "alarm: shard 1: no slot\nalarm: its broker does not answer: it is gone\n" in told.stdout
