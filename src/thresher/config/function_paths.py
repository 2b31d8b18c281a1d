"""Functions that a configuration names by import path, `package.module:function`, so that workers can import them."""

import re
from typing import Annotated

from pydantic import BeforeValidator

from thresher.core.errors import shorten

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
    wrong = [shorten(each) for each in items if not callable(each) and not is_function_path(each)]
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


# The type of a key that names a function or a list of functions. Every malformed path is reported.
FunctionPaths = Annotated[tuple[str, ...], BeforeValidator(_well_formed)]
