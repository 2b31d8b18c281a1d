"""The help of every command at 80 columns."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thresher.cli.app import app
from thresher.cli.layout.help_page import entry_lines

WIDTH = 80
WIDE = 2000


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the command and all its subcommands, by their paths."""
    yield path
    if hasattr(command, "made"):
        command = command.made()
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


@cache
def help_of(path: tuple[str, ...], columns: int) -> str:
    answer = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"})
    assert answer.exit_code == 0, answer.output
    return answer.output


def words(page: str) -> list[str]:
    return [word for line in page.splitlines() for word in line.strip("│ ").split() if not re.match("[╭╰]", line)]


@pytest.fixture(scope="module")
def paths() -> list[tuple[str, ...]]:
    return list(commands(typer.main.get_command(app)))


def test_every_command_is_visited(paths: list[tuple[str, ...]]) -> None:
    assert {("run",), ("dead", "drop"), ("tail", "slot", "create"), ("queue", "dead", "list")} <= set(paths)


def test_every_command_that_contacts_servers_takes_a_stack(paths: list[tuple[str, ...]]) -> None:
    asking = [
        path
        for path in paths
        if path[:1] not in {(), ("status",), ("config",), ("stack",)}
        and re.search(r" --(ds|config|bootstrap|bootstrap-servers) ", help_of(path, WIDE))
    ]
    assert {("topics", "list"), ("capture", "dead", "drop"), ("queue", "track"), ("queue", "dead", "drop")} <= set(
        asking
    )
    assert [path for path in asking if " --stack " not in help_of(path, WIDE)] == []


def test_help_at_80_columns_has_every_word_whole(paths: list[tuple[str, ...]]) -> None:
    for path in paths:
        narrow, wide = help_of(path, WIDTH), help_of(path, WIDE)
        assert max(map(len, narrow.splitlines())) <= WIDTH, path
        assert words(narrow) == words(wide), path


def test_environment_names_are_whole(paths: list[tuple[str, ...]]) -> None:
    found = [help_of(path, WIDTH) for path in paths]
    assert re.search(r"\[env var: THRESHER_BOOTSTRAP_SERVERS[];]", "".join(found))
    for page in found:
        assert "THRESHER_" not in re.sub(r"\bTHRESHER_[A-Z_]*[A-Z](?=[],;. ])", "", page)
        assert not re.search(r"env(\s|│)*$", page, re.MULTILINE)


def test_a_data_source_names_its_variable_for_a_file(paths: list[tuple[str, ...]]) -> None:
    taking = [path for path in paths if re.search(r"│ .*--(ds|data-source)\b", help_of(path, WIDTH))]
    assert [path for path in taking if "THRESHER_DS_FILE " not in help_of(path, WIDE)] == []


def test_printed_roles_need_the_tables_or_grants_alone() -> None:
    page = " ".join(words(help_of(("schema", "print"), WIDE)))
    assert page.count("Needs --relay or --grants") == 3


def test_long_names_stand_above_their_text() -> None:
    entries = [("--short", "a text of several words"), ("--much-longer-than-that", "its text")]
    assert entry_lines(entries, 24, 8) == [
        "--short   a text of",
        "          several words",
        "--much-longer-than-that",
        "          its text",
    ]


def test_a_word_wider_than_the_line_stays_whole() -> None:
    assert entry_lines([("-a", "see THRESHER_AT")], 14) == ["-a  see", "    THRESHER_AT"]


def test_every_command_that_takes_a_data_source_takes_a_stack(paths: list[tuple[str, ...]]) -> None:
    taking = [path for path in paths if re.search(r"│ .*--(ds|data-source)\b", help_of(path, WIDTH))]
    assert len(taking) > 15
    assert [path for path in taking if "--stack NAME" not in help_of(path, WIDTH)] == []
