"""An anchor of a mutant fits one place of the code, or says why it does not."""

from pathlib import Path
from typing import Any

import pytest

from mutants.mutant import Misplaced, Mutant, load, misplaced

CODE = """
LIMIT = 5


class Box:
    def put(self, thing):
        if thing is None:
            return 1
        return 1

    def take(self):
        return 1
"""
TEST = """
def test_put():
    assert True


@pytest.mark.soak
def test_long():
    assert True


TestMachine = object
"""


def mutant(**changes: Any) -> Mutant:
    given = {
        "group": "box", "name": "takes-two", "breaks": "One is taken.", "file": "src/box.py", "function": "Box.take",
        "old": "return 1", "new": "return 2", "test": "tests/test_box.py::test_put", **changes,
    }  # fmt: skip
    return Mutant(**given)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in (("src/box.py", CODE), ("tests/test_box.py", TEST)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_only_the_named_function_is_changed() -> None:
    assert mutant().mutated(CODE) == CODE[: CODE.rindex("1")] + "2\n"


def test_an_anchor_outside_of_functions_names_no_function() -> None:
    assert "LIMIT = 6" in mutant(function="", old="LIMIT = 5", new="LIMIT = 6").mutated(CODE)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"function": "Box.put"}, "occurs 2 times in src/box.py, Box.put"),
        ({"old": "return 3"}, "occurs 0 times"),
        ({"function": "Box.give"}, "no function Box.give"),
        ({"new": "return ("}, "no Python"),
        ({"file": "src/bag.py"}, "bag.py is not there"),
        ({"test": "tests/test_bag.py::test_put"}, "test_bag.py is not there"),
        ({"test": "tests/test_box.py::test_take"}, "defines no test test_take"),
        ({"test": "tests/test_box.py"}, "defines no test"),
        ({"test": "tests/test_box.py::test_long"}, "test_long soak"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(root: Path, changes: dict[str, Any], why: str) -> None:
    (problem,) = misplaced([mutant(**changes)], root)
    assert problem.startswith("takes-two: ")
    assert why in problem


@pytest.mark.parametrize("test", ["test_put", "test_put[one]", "TestMachine"])
def test_functions_cases_and_assigned_classes_are_tests(root: Path, test: str) -> None:
    assert misplaced([mutant(test=f"tests/test_box.py::{test}")], root) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[mutant]]\nname = 'a'\n", "breaks, file, new, old, test missing"),
        (
            "[[mutant]]\nname = 'a'\nbreaks = ''\nfile = ''\nold = ''\nnew = ''\ntest = ''\nnwe = ''\n",
            "no such key: nwe",
        ),
        ("[[mutant]]\nname = 'a'\nbreaks = ''\nfile = ''\nold = ''\nnew = ''\ntest = ''\n" * 2, "there twice: a"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "group.toml").write_text(text)
    with pytest.raises(Misplaced, match=why):
        load(tmp_path)
