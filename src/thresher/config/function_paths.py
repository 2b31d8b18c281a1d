"""Functions that a configuration names by import path, `package.module:function`, so that workers can import them.

A function is looked for in Python's own path first, and then in the directory of the configuration file, if no other
user may write there. Each package and module below it is judged when it is imported, by `trusted_modules`. The working
directory is not searched: whoever may write there could plant a module.
"""

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from thresher.core.errors import shorten
from thresher.core.trusted_modules import judge_modules_of
from thresher.core.trusted_path import why_untrusted

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_function_path(given: object) -> bool:
    """Whether a value is of the form package.module:function."""
    return isinstance(given, str) and _PATH.fullmatch(given) is not None


def function_paths_in(given: object) -> list[str]:
    """Return the well-formed paths of a value or a list of values. Malformed ones are left out."""
    return [each for each in _all_of(given) if isinstance(each, str) and is_function_path(each)]


def _all_of(given: object) -> list[object]:
    return [*given] if isinstance(given, list | tuple) else [given]


def _well_formed(given: object) -> list[object]:
    items = _all_of(given)
    # Keys with values may hold a secret that slipped by a line.
    wrong = [
        shorten(each) if isinstance(each, str | int | float) else f"a {type(each).__name__}"
        for each in items
        if not callable(each) and not is_function_path(each)
    ]
    functions = ", ".join(repr(_path_of(each)) for each in items if callable(each))
    problems = []
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        problems.append(f"{', '.join(wrong)} {verb} not of the form package.module:function")
    if functions:
        problems.append(f"a function is given by its name, from which workers import it, such as {functions}")
    if problems:
        raise ValueError("; ".join(problems))
    return items


def _path_of(function: object) -> str:
    path = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    # A worker cannot import a lambda, a nested function, or a function of the main program.
    findable = is_function_path(path) and not path.startswith("__main__:")
    return path if findable else "module:function"


def search_beside(file: Path | None, functions: Collection[str | None]) -> list[str]:
    """Let functions be imported from the directory of the configuration file, after all other places.

    Returns a remark if another user may write there: then it is not searched. Workers on this machine search the same
    places in the same order.
    """
    if file is None or not any(functions):
        return []
    directory = file.resolve().parent
    for place in (directory, *_importable(directory)):
        if why := why_untrusted(place):
            return [f"functions are not looked for in {directory}: {why}"]
    if str(directory) not in sys.path:
        judge_modules_of(str(directory))
        sys.path.append(str(directory))
    return []


def _importable(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.suffix in {".py", ".pyc", ".so"} or path.is_dir())


# The type of a key that names a function or a list of functions. Every malformed path is reported.
FunctionPaths = Annotated[tuple[str, ...], BeforeValidator(_well_formed)]
