"""Nothing that a stranger wrote reaches a terminal or a log as it is."""

import ast
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.cli import output
from thresher.cli.output import complain, emit_field, emit_line, note, result, sentence, table
from thresher.core.printable import printable, printable_json
from thresher.observe.logs import JsonFormatter, TextFormatter

CLI = Path(output.__file__).parent
HOSTILE = "\x1b]0;owned\x07\x1b[2J \x9b31m \u202e \r x"
# They print our own text, or style it; `demo` shows servers of its own.
TRUSTED = {"output.py", "layout/help_page.py", "pump.py", "demo/relay.py", "demo/queue.py", "demo/worker.py"}
# Bytes for a pipe; and ids that were parsed.
PLAIN_ECHO = {"queue/app.py"}


@given(st.text())
def test_escaped_text_is_printable(text: str) -> None:
    assert all(each.isprintable() or each in "\n\t" for each in printable(text))
    assert printable(printable(text)) == printable(text)


@given(st.text())
def test_escaped_json_is_printable_and_equal(text: str) -> None:
    line = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert line.isprintable()
    assert json.loads(line) == {text: [text]}


@pytest.mark.parametrize(
    "show",
    [
        result, note, complain, sentence, emit_line,
        lambda text: emit_field("key", text),
        lambda text: table(text, ["name"], [[text]]),
    ],
)  # fmt: skip
def test_every_output_for_people_is_escaped(show: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    show(HOSTILE)
    printed = "".join(capsys.readouterr())
    assert "owned" in printed
    assert printed.replace("\n", "").isprintable(), repr(printed)


def test_commands_print_through_that_output_alone() -> None:
    raw = {"echo", "secho", "Console"}
    found = []
    for path in sorted(CLI.rglob("*.py")):
        name = str(path.relative_to(CLI))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or name in TRUSTED:
                continue
            called = ast.unparse(node.func)
            if called in {"print", "out.print", "err.print", "sys.stdout.write", "sys.stderr.write"} or (
                called.rpartition(".")[2] in raw and name not in PLAIN_ECHO
            ):
                found.append(f"{name}:{node.lineno} {called}")
    assert found == []


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_log_line_controls_the_terminal_that_shows_it(formatter: logging.Formatter) -> None:
    try:
        int(HOSTILE)
    except ValueError:
        record = logging.LogRecord("thresher", 30, __file__, 1, "topic %s", (HOSTILE,), sys.exc_info())
    record.topic = HOSTILE
    assert formatter.format(record).replace("\n", "").isprintable()
