"""Nothing that a stranger wrote reaches a terminal or a log as it is."""

import ast
import json
import logging
import sys
import threading
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
    error = (ValueError, ValueError(HOSTILE), None)
    record = logging.LogRecord("thresher", 30, __file__, 1, "topic %s", (HOSTILE,), error)
    record.topic = HOSTILE
    assert formatter.format(record).replace("\n", "").isprintable()


FORGED = "2026-01-01 00:00:00,000 CRITICAL all rows are lost"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_no_text_of_others_begins_a_log_line(formatter: logging.Formatter, end: str) -> None:
    text = f"x{end}{FORGED}"
    error = (ValueError, ValueError(text), None)
    record = logging.LogRecord("thresher", 30, __file__, 1, f"topic %s{end}{FORGED}", (text,), error)
    record.stack_info = f"Stack (most recent call last):\n{FORGED}"
    # Another handler has formatted the exception before.
    record.exc_text = logging.Formatter().formatException(error)
    lines = formatter.format(record).splitlines()
    assert FORGED in lines[0]
    assert not [line for line in lines[1:] if not line.startswith(" ")]
    if isinstance(formatter, JsonFormatter):
        assert len(lines) == 1
    else:
        assert lines[1].startswith("  ValueError: x")


@pytest.mark.parametrize("show", [note, complain, result])
def test_no_text_of_others_begins_a_line_of_ours(
    show: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show(f"x\n{FORGED}\n  a line of ours")
    first, *others = "".join(capsys.readouterr()).splitlines()
    assert first.endswith("x")
    assert others == [f"  {FORGED}", "  a line of ours"]


def test_an_unexpected_error_forges_no_log_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_mask", "_log"):
        monkeypatch.setattr(output, name, getattr(output, name))
    for module, name in ((sys, "excepthook"), (threading, "excepthook")):
        monkeypatch.setattr(module, name, getattr(module, name))
    output.hide(str)
    sys.excepthook(ValueError, ValueError(f"x\n{FORGED}"), None)
    assert capsys.readouterr().err.splitlines() == ["ValueError: x", f"  {FORGED}"]
