"""A mutant: a replacement of a piece of code that breaks one promise on purpose, and the test that must fail.

A group of mutants is a file `mutants/<group>.toml`, with a table `[[mutant]]` for each mutant:
- `name`, unique among all; `breaks`, the promise in one line;
- `file`, and in Python the `function` (`Class.method`) that holds the old text, left out where it is in no function;
- `old`: text that occurs exactly once there, short enough to survive a move of the code; and `new`, its replacement;
- `test`, the pytest id of a test; `own_servers = true` where that test stops, starts or signals servers.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REQUIRED = {"name", "breaks", "file", "old", "new", "test"}
_OPTIONAL = {"function", "own_servers"}
# Tests in other folders start no servers.
_SERVED = ("tests/integration/", "tests/crash/", "tests/contract/", "tests/acceptance/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken promise, as defined in a file."""

    group: str
    name: str
    breaks: str
    file: str
    old: str
    new: str
    test: str
    function: str = ""
    own_servers: bool = False

    @property
    def test_file(self) -> str:
        """The file of the test that must fail."""
        return self.test.partition("::")[0]

    @property
    def served(self) -> bool:
        """Tell whether the test may need servers."""
        return self.test.startswith(_SERVED)

    def mutated(self, text: str) -> str:
        """Return the file's text with the promise broken; raises `Misplaced` unless the old text is there once."""
        start, end = self._span(text)
        count = text.count(self.old, start, end)
        where = f"{self.file}, {self.function}" if self.function else self.file
        if count != 1:
            raise Misplaced(
                f"{self.name}: the old text occurs {count} times in {where}, not once: {self.old.strip()!r}"
            )
        place = text.index(self.old, start, end)
        changed = text[:place] + self.new + text[place + len(self.old) :]
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise Misplaced(f"{self.name}: the new text makes {where} no Python: {error}") from error
        return changed

    def _span(self, text: str) -> tuple[int, int]:
        if not self.function:
            return 0, len(text)
        for name, node in definitions(ast.parse(text)):
            if name == self.function:
                lines = [len(line) + 1 for line in text.split("\n")]
                return sum(lines[: node.lineno - 1]), sum(lines[: node.end_lineno])
        raise Misplaced(f"{self.name}: {self.file} has no function {self.function}")


class Misplaced(Exception):  # noqa: N818 - a state of the mutant, reported with others
    """A mutant that does not fit the current code."""


def load(directory: Path) -> list[Mutant]:
    """Return the mutants of all files, in order; raises `Misplaced` for a malformed file."""
    found: list[Mutant] = []
    for file in sorted(directory.glob("*.toml")):
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", [])
        found += [_mutant(file.stem, given) for given in tables]
    names = [mutant.name for mutant in found]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise Misplaced(f"names that are there twice: {', '.join(repeated)}")
    return found


def _mutant(group: str, given: dict[str, Any]) -> Mutant:
    name = given.get("name", "a mutant without a name")
    if missing := _REQUIRED - given.keys():
        raise Misplaced(f"{group}.toml, {name}: {', '.join(sorted(missing))} missing")
    if unknown := given.keys() - _REQUIRED - _OPTIONAL:
        raise Misplaced(f"{group}.toml, {name}: no such key: {', '.join(sorted(unknown))}")
    return Mutant(group=group, **given)


def misplaced(mutants: list[Mutant], root: Path) -> list[str]:
    """Return what does not fit: an old text that is not there exactly once, or a test that is not defined."""
    problems = []
    for mutant in mutants:
        try:
            mutant.mutated((root / mutant.file).read_text(encoding="utf-8"))
            _require_test(mutant, root)
        except FileNotFoundError as error:
            problems.append(f"{mutant.name}: {error.filename} is not there")
        except Misplaced as problem:
            problems.append(str(problem))
    return problems


def _require_test(mutant: Mutant, root: Path) -> None:
    tree = ast.parse((root / mutant.test_file).read_text(encoding="utf-8"))
    wanted = mutant.test.partition("[")[0].split("::")[1:]
    defined = {name for name, _ in definitions(tree)}
    # A state machine's test class is assigned: `TestThing = Machine.TestCase`.
    defined |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if not wanted or ".".join(wanted) not in defined:
        raise Misplaced(f"{mutant.name}: {mutant.test_file} defines no test {'::'.join(wanted)}")
    if ".".join(wanted) in _soaked(tree):
        raise Misplaced(f"{mutant.name}: {mutant.test_file} marks {'::'.join(wanted)} soak: './run test' leaves it out")


def _soaked(tree: ast.Module) -> set[str]:
    """Return the tests with the mark `soak`."""
    module = any(
        isinstance(node, ast.Assign)
        and "pytestmark" in map(ast.unparse, node.targets)
        and "mark.soak" in ast.unparse(node)
        for node in tree.body
    )
    return {
        name
        for name, node in definitions(tree)
        if module or any(ast.unparse(each) == "pytest.mark.soak" for each in node.decorator_list)
    }


def definitions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Yield the functions and classes of a module, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if any(ast.unparse(each) == "overload" for each in node.decorator_list):
                # An overload's signature has no code to break.
                continue
            yield prefix + node.name, node
            yield from definitions(node, f"{prefix}{node.name}.")
        else:
            yield from definitions(node, prefix)
