"""The servers of a command that names a stack."""

import json
import os
import stat
from pathlib import Path

import pytest
import typer

from thresher.cli.options import resolve_dsn
from thresher.cli.stack.app import down, list_stacks, status
from thresher.cli.stack.choosing import export_lines, named_endpoints, with_broker, with_stack
from thresher.core.errors import InvalidInput
from thresher.devstack import ports
from thresher.devstack.cache import locked
from thresher.devstack.named_stack import Endpoints, NamedStack, Spec
from thresher.devstack.problem import StackProblem

RUNS = Endpoints(dsn="host=h password='p w'", bootstrap="h:1", processes={})


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate one running stack with the name `mine`."""
    monkeypatch.setenv("THRESHER_STATE", str(tmp_path))
    for name in ("THRESHER_DS", "THRESHER_DATA_SOURCE", "THRESHER_DS_FILE", "THRESHER_DATA_SOURCE_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "mine.lock").touch()
    monkeypatch.setattr(NamedStack, "endpoints", lambda stack: RUNS if stack.name == "mine" else None)


def test_a_named_stack_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_DS", "host=other")
    assert resolve_dsn("host=other", "mine") == RUNS.dsn
    assert resolve_dsn("host=other") == "host=other"


def test_a_wrong_data_source_is_reported_with_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^--ds: not a Postgres"):
        resolve_dsn("nonsense")
    monkeypatch.setenv("THRESHER_DS", "nonsense")
    with pytest.raises(InvalidInput, match=r"^THRESHER_DS: not a Postgres"):
        resolve_dsn("nonsense")
    monkeypatch.delenv("THRESHER_DS")
    (tmp_path / "ds").write_text("nonsense")
    monkeypatch.setenv("THRESHER_DS_FILE", str(tmp_path / "ds"))
    with pytest.raises(InvalidInput, match=r"^THRESHER_DS_FILE: not a Postgres"):
        resolve_dsn(None)


def test_a_stack_and_a_flag_for_the_database_are_refused() -> None:
    with pytest.raises(InvalidInput, match="leave one of them out"):
        resolve_dsn("host=flag", "mine")
    for flags in ({"data_source": "host=flag"}, {"kafka": {"bootstrap.servers": "k:1"}}):
        with pytest.raises(InvalidInput, match="leave --data-source and --bootstrap out"):
            with_stack(flags, "mine")


def test_a_stack_overrides_servers_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in export_of("host=other", "k:1").items():
        monkeypatch.setenv(name, value)
    found = with_stack({"data_source": "host=other", "kafka": {"bootstrap.servers": "k:1"}}, "mine")
    assert found == {"data_source": RUNS.dsn, "kafka": {"bootstrap.servers": "h:1"}}
    monkeypatch.setenv("THRESHER_BOOTSTRAP_SERVERS", "k:1")
    assert with_broker({"bootstrap-servers": "k:1"}, "mine") == {"bootstrap-servers": "h:1"}


def test_a_stack_is_the_broker_of_queues() -> None:
    assert with_broker({"ttl": 1}, "mine") == {"ttl": 1, "bootstrap-servers": "h:1"}
    assert with_broker({"ttl": 1}, None) == {"ttl": 1}
    with pytest.raises(InvalidInput, match="leave --bootstrap-servers out"):
        with_broker({"bootstrap-servers": "k:1"}, "mine")


def test_an_unknown_stack_cannot_be_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    NamedStack("mine").directory.mkdir()
    NamedStack("mine").spec_file.write_text("{}")
    with pytest.raises(StackProblem, match="there is no stack 'nosuch'; there are: mine"):
        down("nosuch")
    with pytest.raises(typer.Exit):
        status("nosuch")
    assert "there are: mine" in capsys.readouterr().err
    down("default")


def test_stacks_are_listed_with_their_servers(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("mine", "old"):
        NamedStack(name).directory.mkdir()
        NamedStack(name).spec_file.write_text("{}")
        NamedStack(name).lock.touch()
    list_stacks(as_json=True)
    mine, old = json.loads(capsys.readouterr().out)["stacks"]
    assert (mine["name"], mine["running"], mine["bootstrap"]) == ("mine", True, "h:1")
    assert old == {"name": "old", "running": False}
    list_stacks()
    assert "stopped, data kept" in capsys.readouterr().out


def export_of(dsn: str, bootstrap: str) -> dict[str, str]:
    return {"THRESHER_DS": dsn, "THRESHER_BOOTSTRAP": bootstrap}


def test_a_stack_is_both_servers_of_a_form() -> None:
    found = with_stack({"data_source": None, "kafka": {"acks": "all"}, "shards": 2}, "mine")
    assert found == {"data_source": RUNS.dsn, "kafka": {"acks": "all", "bootstrap.servers": "h:1"}, "shards": 2}
    assert with_stack({"shards": 2}, None) == {"shards": 2}


def test_a_stopped_stack_is_named_beside_the_running_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'other' does not run: .* stack up --name other' \(running: mine\)"):
        named_endpoints("other")
    with pytest.raises(InvalidInput, match=r"--stack, or start one with 'thresher stack up' \(running: mine\)"):
        resolve_dsn(None)


def test_exported_lines_survive_a_shell() -> None:
    assert export_lines(RUNS) == [
        """export THRESHER_DS='host=h password='"'"'p w'"'"''""",
        "export THRESHER_BOOTSTRAP=h:1",
    ]


def test_lock_files_are_closed_to_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may open a file can lock it, and so stop those who wait for the lock."""
    kept = NamedStack("mine")
    # An earlier version created it so.
    kept.lock.chmod(0o644)
    kept.directory.parent.chmod(0o755)
    assert not kept.down()
    monkeypatch.setattr(ports, "cache_home", lambda: tmp_path)
    ports._claims.cache_clear()
    ports.free_port()
    ports._claims.cache_clear()
    with locked(tmp_path / "cache.lock"):
        pass
    for file in (kept.lock, tmp_path / "ports.lock", tmp_path / "cache.lock"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_the_directory_of_stacks_is_closed_to_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = NamedStack("new")
    kept.directory.parent.chmod(0o755)
    monkeypatch.setattr(NamedStack, "_start", lambda *_: RUNS)
    assert kept.up(Spec()) == RUNS
    # As root, the database's account passes through.
    assert stat.S_IMODE(kept.directory.parent.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)


def test_the_ports_of_the_last_run_are_remembered() -> None:
    stack = NamedStack("mine")
    assert stack.last_ports() is None
    stack.directory.mkdir()
    stack.ports_file.write_text(json.dumps({"postgres": 1, "kafka": [2, 3]}))
    last = stack.last_ports()
    assert last is not None
    assert (last.postgres, last.kafka) == (1, (2, 3))
