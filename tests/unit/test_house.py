"""Folders, modules and classes keep their size limits."""

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "thresher"
MODULES, LINES, METHODS, ATTRIBUTES = 20, 450, 20, 15


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (f"{path.relative_to(SOURCE)}:{node.name}", node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that a class sets on itself, and the fields that it declares."""
    own = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    # A value's fields are its contract, not its state.
    value = any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not ast.unparse(each.annotation).startswith("ClassVar")
    }
    return own if value or node.bases else own | declared


def methods(node: ast.ClassDef) -> list[str]:
    overloads = {"overload", "typing.overload"}
    return [
        each.name
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and not overloads & {ast.unparse(decorator) for decorator in each.decorator_list}
    ]


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    counts = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MODULES + 1} == {}, "__init__ apart"


def test_no_module_is_too_long() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > LINES} == {}


@pytest.mark.parametrize(
    ("most", "what"), [(METHODS, methods), (ATTRIBUTES, attributes)], ids=["methods", "attributes"]
)
def test_no_class_has_too_many_attributes_or_methods(most: int, what: object) -> None:
    assert callable(what)
    assert {name: count for name, node in classes() if (count := len(what(node))) > most} == {}
