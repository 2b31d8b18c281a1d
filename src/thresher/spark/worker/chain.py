"""Imports the functions of a pipeline and passes batches through them, in one process, one batch at a time.

1. Every function is imported and its signature checked before any of them is called.
2. The functions are composed from the first to the last; the last one pulls.
3. A function yields batches one by one: Arrow record batches, or any other value that the next function takes.
4. On a stop, the first function is not asked for another batch. To the others, their input has then ended.
5. At the end, also after an error, the functions are closed from the last to the first. The task then closes the
   resources that they entered (`Shard.enter`).
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from thresher.core.errors import shorten
from thresher.spark.pipeline import Step
from thresher.spark.problem import InputLeft, StepUnusable, WrongBatch
from thresher.spark.worker.shard import Shard

Function = Callable[..., Any]


class SourceBatches:
    """The source's batches, until the source ends or a stop is requested. `ended`: the source has ended."""

    def __init__(self, shard: Shard, batches: Iterator[Any]) -> None:
        self.ended = False
        self._shard = shard
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        shard = self._shard
        while not shard.stopping:
            try:
                batch = next(self._batches)
            except StopIteration:
                self.ended = True
                return
            yield batch


def run_chain(
    steps: Sequence[Step], shard: Shard, on_close: Callable[[BaseException | None], None] = lambda _error: None
) -> None:
    """Run until the source ends or a stop is requested. Raises the errors of the functions.

    `on_close` gets the error, or None, before the functions are closed: closing may take long, hang or fail as well.
    """
    functions = [resolve(step.function, arguments=2 if number == 0 else 3) for number, step in enumerate(steps)]
    with ExitStack() as generators:
        try:
            _pull(list(zip(functions, steps, strict=True)), shard, generators)
        except BaseException as error:
            on_close(error)
            raise
        on_close(None)


def _pull(chain: list[tuple[Function, Step]], shard: Shard, generators: ExitStack) -> None:
    def passed_on(step: Step, given: object) -> Iterator[Any]:
        batches = checked(step.function, given)
        # Both are closed: closing the outer generator does not reach an inner one that was never started.
        for generator in (given, batches):
            if hasattr(generator, "close"):
                generators.callback(generator.close)
        return batches

    function, step = chain[0]
    source = SourceBatches(shard, passed_on(step, function(shard, step.config)))
    flow: Iterator[Any] = iter(source)
    for number, (function, step) in enumerate(chain[1:], 2):
        given = function(shard, step.config, flow)
        if given is None and number == len(chain):
            break
        flow = passed_on(step, given)
    else:
        for _ in flow:
            pass
    if not source.ended and not shard.stopping:
        raise InputLeft(f"{chain[-1][1].function} returned before its input ended: it must take every batch")


def checked(function: str, given: object) -> Iterator[Any]:
    """Return a function's batches as an iterator. Raises `WrongBatch`, also later, at a batch that is None."""
    if not isinstance(given, Iterable) or isinstance(given, pa.RecordBatch | str | bytes | Mapping):
        raise WrongBatch(f"{function} returned {_kind(given)}: it must yield its batches one by one")
    return _checked(function, given)


def _checked(function: str, given: Iterable[Any]) -> Iterator[Any]:
    for batch in given:
        if batch is None:
            raise WrongBatch(f"{function} yielded None: it must yield batches")
        yield batch


def resolve(path: str, *, arguments: int) -> Function:
    """Import a function by its path and check that it takes this number of arguments. Raises `StepUnusable`."""
    module, _, name = path.partition(":")
    found: Any
    try:
        found = importlib.import_module(module)
    except BaseException as error:
        searched = _searched_paths(error, module)
        raise StepUnusable(f"{path} cannot be imported: {type(error).__name__}: {error}{searched}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise StepUnusable(f"{path} cannot be imported: {module} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise StepUnusable(f"{path} is {_kind(found)}, not a function")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        signature = None  # a function in C: only the call itself can fail
    try:
        if signature is not None:
            signature.bind(*range(arguments))
    except TypeError as error:
        wanted = {1: "(batch)", 2: "(shard, config)"}.get(arguments, "(shard, config, batches)")
        raise StepUnusable(f"{path}{signature} cannot be called as {wanted}: {error}") from error
    function: Function = found
    return function


def _searched_paths(error: BaseException, module: str) -> str:
    """Return the paths that were searched if the function's own module was not found, else nothing."""
    found_none = isinstance(error, ModuleNotFoundError) and error.name is not None
    if not found_none or not f"{module}.".startswith(f"{error.name}."):  # type: ignore[attr-defined]
        return ""
    paths = dict.fromkeys(path or str(Path.cwd()) for path in sys.path)
    return f"; looked in {', '.join(path for path in paths if Path(path).exists())}"


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{shorten(value)}, a {type(value).__name__}"
