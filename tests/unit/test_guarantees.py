"""Each promise in docs/guarantees.md names tests and a mutant that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from mutants.mutant import definitions, load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PARTS = [
    "Kafka's permissions and topics",
    "Outbox writer", "Relay, exactly once", "Relay, at least once", "Relay and its servers",
    "Other logins of the server",
    "Rows and topics that cannot be sent", "Health and figures", "Engine", "Election", "Harvest", "Configuration",
    "Queues", "Tracker", "Publisher", "Dispatcher and sweeper", "Inbox", "Topic locks", "Tail", "Capture", "Archive",
    "Deimos' tables", "Load generator and checker", "Local stack",
    "Other users of the machine, the network and the terminal",
]  # fmt: skip
CELLS = ["promise", "why it holds", "test", "mutant"]


class Promise(NamedTuple):
    part: str
    promise: str
    why: str
    tests: tuple[str, ...]
    mutant: str


def promises(page: str) -> Iterator[Promise]:
    """Yield the rows of all tables. Raises `ValueError` for a row that is malformed."""
    part = ""
    for line in page.splitlines():
        if line.startswith("## "):
            part = line.removeprefix("## ")
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if cells == CELLS or set("".join(cells)) == {"-"}:
                continue
            if len(cells) != len(CELLS) or not all(cells) or not part:
                raise ValueError(f"{part}: a row needs {', '.join(CELLS)}: {line}")
            promise, why, tests, mutant = cells
            named = re.fullmatch(r"`([\w-]+)`", mutant)
            if named is None or not re.fullmatch(r"`[^`]+`(<br>`[^`]+`){0,2}", tests):
                raise ValueError(f"{part}: a row names one to three tests and one mutant: {line}")
            yield Promise(part, promise, why, tuple(re.findall(r"`([^`]+)`", tests)), named[1])


@cache
def defined(file: str) -> frozenset[str]:
    """Return the tests of a file; state machines of Hypothesis are assigned: `TestThing = Machine.TestCase`."""
    tree = ast.parse((ROOT / file).read_text())
    assigned = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    names = {name.replace(".", "::") for name, _ in definitions(tree)}
    return frozenset(names | {target.id for target in assigned if isinstance(target, ast.Name)})


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name.rpartition("::")[2].lower().startswith("test") and name in defined(file)


def test_every_part_has_promises() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == PARTS
    assert list(dict.fromkeys(each.part for each in promises(PAGE))) == PARTS


def test_every_promise_names_tests_that_exist() -> None:
    assert [test for each in promises(PAGE) for test in each.tests if not exists(test)] == []


def test_every_promise_names_a_mutant_its_test_catches() -> None:
    mutants = {mutant.name: mutant.test.partition("[")[0] for mutant in load(ROOT / "mutants")}
    named = list(promises(PAGE))
    assert [each.mutant for each in named if each.mutant not in mutants] == []
    assert [each.mutant for each in named if mutants[each.mutant] not in each.tests] == []


def test_names_that_do_not_exist_are_found() -> None:
    assert exists("tests/unit/test_guarantees.py::test_names_that_do_not_exist_are_found")
    assert exists("tests/property/test_tail_property.py::TestTail")
    assert not exists("tests/unit/test_guarantees.py::test_nothing")
    assert not exists("tests/unit/test_guarantees.py::exists")
    assert not exists("tests/unit/test_guarantees.py")
    assert not exists("tests/unit/test_nowhere.py::test_nothing")


@pytest.mark.parametrize(
    "row",
    [
        "| a | b | `tests/t.py::test_t` |",
        "| a | | `tests/t.py::test_t` | `m` |",
        "| a | b | `tests/t.py::test_t` | `m` | c |",
        "| a | b | | `m` |",
        "| a | b | tests/t.py::test_t | `m` |",
        "| a | b | `t` `t` | `m` |",
        "| a | b | `tests/t.py::test_t` | `m`, `n` |",
    ],
)
def test_a_malformed_row_is_an_error(row: str) -> None:
    with pytest.raises(ValueError, match="Part: a row"):
        list(promises(f"## Part\n\n| promise | why it holds | test | mutant |\n| --- | --- | --- | --- |\n{row}\n"))
