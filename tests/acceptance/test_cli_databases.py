"""Each command that works on a database says which one, and refuses an environment that contradicts its file.

The commands are found in the command tree, so that a new one has to be entered here. Nothing listens where they are
sent: they name the database before they connect.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from tests.in_process import thresher_text
from thresher.cli.app import app

IN_ENVIRONMENT = {"THRESHER_DS": "host=127.0.0.1 port=1 dbname=shop user=u password=hunter2"}
SHOWN = "database localhost:1/shop"
OF_OUTBOX = {"name": "it", "kafka": {"bootstrap.servers": "localhost:1"}, "election": "none"}
RELAY: dict[str, Any] = OF_OUTBOX
TOPIC_LOCKS = {"name": "it", "kafka": {"bootstrap.servers": "localhost:1"}, "coordination": "topic-lock"}
TAIL: dict[str, Any] = {**OF_OUTBOX, "keep_seconds": 5}
CAPTURE = {**OF_OUTBOX, "topics": {"t": {"handler": "builtins:print"}}}
ARCHIVE = {**OF_OUTBOX, "settle": "stamp", "archive_after_seconds": 60}
# What each command needs besides its database, and the file of those that read one.
WORDS: dict[str, tuple[list[str], dict[str, Any] | None]] = {
    "run": ([], RELAY),
    "adopt": (["it"], None),
    "pump": (["--keys", "1", "--records", "1"], None),
    "verify": (["--history", "{directory}/history", "--topic", "t", "--bootstrap", "localhost:1"], None),
    "schema create": ([], None),
    "schema check": ([], RELAY),
    "dead list": ([], RELAY),
    "dead show": (["1"], RELAY),
    "dead replay": (["1"], RELAY),
    "dead drop": (["1"], RELAY),
    "topics list": ([], TOPIC_LOCKS),
    "topics split": (["t", "2"], TOPIC_LOCKS),
    "inbox create": ([], None),
    "inbox check": ([], None),
    "inbox trim": (["--older-than-days", "1"], None),
    "inbox dead list": ([], None),
    "inbox dead drop": (["1"], None),
    "tail run": ([], TAIL),
    "tail join": ([], TAIL),
    "tail leave": ([], TAIL),
    "tail slot create": ([], None),
    "tail slot check": ([], None),
    "tail slot key": ([], None),
    "tail slot drop": (["--slot", "s"], None),
    "capture run": ([], CAPTURE),
    "capture rewind": (["--to", "earliest"], CAPTURE),
    "capture adopt": ([], CAPTURE),
    "capture step-over": (["--yes"], CAPTURE),
    "capture schema create": ([], CAPTURE),
    "capture schema check": ([], CAPTURE),
    "capture dead list": ([], CAPTURE),
    "capture dead show": (["1"], CAPTURE),
    "capture dead retry": (["1"], CAPTURE),
    "capture dead drop": (["1"], CAPTURE),
    "archive": ([], ARCHIVE),
    "config check": ([], RELAY),
}
PIPELINES = {"run", "tail run", "capture run"}
WITHOUT_A_DATABASE = {
    # They print what they are told, and ask no server.
    "schema print", "inbox print", "capture schema print", "config print", "spark pack",
    # They ask a process of this machine for its page.
    "status",
    # Queues are topics: they have no database.
    *(f"queue {name}" for name in ("init", "send", "receive", "peek", "stats", "step-over", "track")),
    *(f"queue dead {name}" for name in ("list", "show", "replay", "drop")),
    # It moves a consumer group.
    "inbox step-over",
    # Local servers, which they start, name and end themselves.
    "demo", *(f"stack {name}" for name in ("up", "env", "down", "status", "list", "logs")),
}  # fmt: skip


def commands(command: Any, *names: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each command of the tree, with its options."""
    command = command.made() if hasattr(command, "made") else command
    if not isinstance(command, click.Group) and not hasattr(command, "list_commands"):
        yield " ".join(names), {option for each in command.params for option in each.opts}
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), *names, name)


OPTIONS = dict(commands(typer.main.get_command(app)))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use: a pipeline that shall have its pages there ends before it starts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def called(command: str, place: Path, *, port: int, dsn: str | None, environment: dict[str, Any]) -> tuple[int, str]:
    """Run a command with a database in its file or, without `dsn`, in the environment; return its code and output."""
    words, document = WORDS[command]
    (place / "history").touch()
    arguments = [*command.split(), *(each.format(directory=place) for each in words)]
    if document is not None:
        at = {"status": f"127.0.0.1:{port}"} if command in PIPELINES else {}
        given = {} if dsn is None else {"data_source": dsn}
        (place / "it.yaml").write_text(yaml.safe_dump({**document, **at, **given}))
        arguments += ["-c", str(place / "it.yaml")]
    without = ["THRESHER_DS", "THRESHER_DATA_SOURCE", "THRESHER_BOOTSTRAP", "THRESHER_CONFIG"]
    done = thresher_text(*arguments, without=[each for each in without if each not in environment], **environment)
    return done.returncode, done.stdout + done.stderr


def test_each_command_is_known_here() -> None:
    assert set(WORDS) | WITHOUT_A_DATABASE == set(OPTIONS)
    assert not set(WORDS) & WITHOUT_A_DATABASE
    # The command that may be given a file is given one.
    for command, (_, document) in WORDS.items():
        assert (document is not None) == ("--config" in OPTIONS[command]), command


@pytest.mark.parametrize("command", WORDS)
def test_a_command_names_its_database(command: str, tmp_path: Path, taken: int) -> None:
    code, told = called(command, tmp_path, port=taken, dsn=None, environment=IN_ENVIRONMENT)
    assert SHOWN in told, told
    assert "hunter2" not in told
    assert code == 0 if command == "config check" else code != 0


@pytest.mark.parametrize("command", [command for command, (_, document) in WORDS.items() if document is not None])
def test_a_command_refuses_an_environment_that_contradicts_its_file(command: str, tmp_path: Path, taken: int) -> None:
    code, told = called(command, tmp_path, port=taken, dsn="host=elsewhere dbname=shop", environment=IN_ENVIRONMENT)
    assert code == 2, told
    assert "the file names elsewhere:5432/shop, and the environment names localhost:1/shop: unset THRESHER_DS" in told
    assert "hunter2" not in told
