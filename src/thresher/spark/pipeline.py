"""The definition of a pipeline: its name, its number of shards, and a chain of functions over batches.

A batch is any value, such as an Arrow record batch. A function is named by its import path, `package.module:function`,
and imported in the worker. The first one reads, the last one publishes, any others transform:

    def read(shard: Shard, config: Mapping[str, Any]) -> Iterator[RecordBatch]: ...
    def transform(shard: Shard, config: Mapping[str, Any], batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]: ...
    def publish(shard: Shard, config: Mapping[str, Any], batches: Iterator[RecordBatch]) -> None: ...

The last function pulls. Its code before the first pull therefore runs before anything is read, and a batch is read
only after the previous one was passed on. `worker.shard` documents the `Shard` argument.
"""

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.core.errors import shorten
from thresher.spark.policy import Policy
from thresher.spark.problem import PipelineInvalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_SHARDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One function of the chain and its configuration, which may hold secrets and is therefore never shown."""

    function: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.config, Mapping):
            # A plain dict can be pickled; other mappings may not.
            object.__setattr__(self, "config", dict(self.config))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A chain of functions that runs once per shard. Raises `PipelineInvalid`, which lists every problem."""

    name: str
    shards: int
    steps: tuple[Step, ...]
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        wrong = [*_wrong_about(self.name, self.shards)]
        if not self.steps:
            wrong.append("steps: there are none; give at least one function that reads")
        for number, step in enumerate(self.steps, 1):
            wrong += [f"step {number}, {problem}" for problem in _wrong_step(step.function, step.config)]
        if wrong:
            raise PipelineInvalid(f"the pipeline cannot run: {'; '.join(wrong)}")


def _wrong_about(name: object, shards: object) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield (
            f"name {shorten(name)}: give up to 100 letters, digits, dots, dashes and underscores,"
            " the first a letter or digit"
        )
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _MOST_SHARDS:
        yield f"shards {shorten(shards)}: give a number from 1 to {_MOST_SHARDS}"


def _wrong_step(function: object, config: object) -> Iterator[str]:
    if not isinstance(function, str) or not _PATH.fullmatch(function):
        yield f"function {shorten(function)}: write it as package.module:function"
    if not isinstance(config, Mapping):
        yield f"config: a {type(config).__name__} is not a mapping"
    elif problem := _not_sendable(config):
        yield f"config: it cannot be sent to the workers ({problem})"


def _not_sendable(config: Mapping[Any, Any]) -> str | None:
    """Return why the configuration cannot be pickled, without showing any of its values."""
    try:
        pickle.dumps(dict(config))
    except Exception as error:  # noqa: BLE001 - pickling runs the values' own code
        return type(error).__name__
    return None
