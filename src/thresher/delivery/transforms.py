"""Applies the transforms: functions from a record batch to a record batch, named by import path.

1. A row is known by its id. A row that is not in the result was filtered. An unknown id, an id that occurs twice, or
   another schema is a failure. A function never gets an empty batch.
2. When a function fails, the batch is halved until the rows are found that fail alone: these are poison, and the others
   go on.
3. If a hundred rows in a row fail, or every row of the first batch, the function is at fault, not the rows. Then
   no row is dead: the shard waits with an alarm, and reads the rows again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from thresher.delivery.batch import Batch, FailingTransform, NothingYet, transformed
from thresher.delivery.fate import Dead, Kind, dead
from thresher.delivery.problem import TransformKeepsFailing, TransformUnusable
from thresher.delivery.row import RowList
from thresher.delivery.stored_rows import SCHEMA, StoredBatch, flawless
from thresher.spark.problem import StepUnusable
from thresher.spark.worker.chain import resolve
from thresher.spark.worker.shard import Shard

# Consecutive failed rows after which the transform itself is at fault.
MOST_FAILURES = 100
# The name of the step in which a shard's transforms run.
STEP = "transform"

Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
_NO_STEP: AbstractContextManager[Any] = nullcontext()


@dataclass(slots=True)
class Transformed:
    """The result of the transforms for a batch: the rows that go on, and the fates of those that failed."""

    batch: pa.RecordBatch
    failed: dict[int, Dead] = field(default_factory=dict)
    failures: int = 0


@dataclass(slots=True)
class FailureCount:
    """Consecutive rows on which transforms have failed, up to the last batch that was taken."""

    rows: int = 0


def apply(
    shard: Shard, config: Mapping[str, Any], batches: Iterator[StoredBatch | NothingYet]
) -> Iterator[Batch | NothingYet]:
    """Transform stored rows into rows with records: the step of the pipeline between reader and publisher."""
    transforms = load(config["transforms"])
    failed_so_far = shard.share(FailureCount)
    succeeded = False
    step = shard.step(STEP)
    for batch in batches:
        if isinstance(batch, NothingYet):
            yield batch
            continue
        # Rows in which the database found a flaw cannot be sent: transforms do not see them.
        given = flawless(batch.arrow)
        began = time.monotonic()
        try:
            done = run(transforms, given, failed_so_far.rows, succeeded=succeeded, step=step)
        except TransformKeepsFailing as problem:
            failing = FailingTransform(topics=frozenset(given.column("topic").to_pylist()), why=str(problem))
            yield Batch(
                rows=RowList(), generation=batch.generation, failures=failed_so_far.rows, failing=failing
            )  # fmt: skip
            continue
        succeeded = succeeded or len(done.failed) < given.num_rows
        rows = transformed(batch.arrow, done.batch, done.failed, config["reserved"])
        seconds = time.monotonic() - began
        yield Batch(rows=rows, generation=batch.generation, failures=done.failures, transform_seconds=seconds)


def load(paths: Sequence[str]) -> list[tuple[str, Transform]]:
    """Import the functions. Raises `TransformUnusable`."""
    try:
        return [(path, resolve(path, arguments=1)) for path in paths]
    except StepUnusable as error:
        raise TransformUnusable(f"transform: {error}") from error


def run(
    transforms: Sequence[tuple[str, Transform]],
    batch: pa.RecordBatch,
    failures: int = 0,
    *,
    succeeded: bool = True,
    step: AbstractContextManager[Any] = _NO_STEP,
) -> Transformed:
    """Pass a batch through all functions. `failures` is the number of consecutive failed rows so far.

    Each call of a function is timed as a `step` of its own, so that many slow calls do not look like one that hangs.

    Raises `TransformKeepsFailing` if a function is at fault: also if it fails on every row and never `succeeded`
    before.
    """
    done = _run([(path, _stepping(function, step)) for path, function in transforms], batch, failures)
    if not succeeded and len(done.failed) == batch.num_rows > 0:
        raise TransformKeepsFailing(
            f"{next(iter(done.failed.values())).reason}; it failed on all {batch.num_rows} rows of its first batch: "
            "nothing is set aside until it has succeeded once; correct the transform"
        )
    return done


def _stepping(function: Transform, step: AbstractContextManager[Any]) -> Transform:
    def stepping(batch: pa.RecordBatch) -> pa.RecordBatch:
        with step:
            return function(batch)

    return stepping


def _run(transforms: Sequence[tuple[str, Transform]], batch: pa.RecordBatch, failures: int) -> Transformed:
    try:
        result = _checked(transforms, batch)
    except _Failure as failure:
        return _halved(transforms, batch, failures, failure)
    return Transformed(batch=result, failures=0 if batch.num_rows else failures)


def _halved(
    transforms: Sequence[tuple[str, Transform]], batch: pa.RecordBatch, failures: int, failure: "_Failure"
) -> Transformed:
    if batch.num_rows == 1:
        (id_,) = batch.column("id").to_pylist()
        failures += 1
        if failures >= MOST_FAILURES:
            raise TransformKeepsFailing(
                f"transform {failure.path} failed on {failures} rows in a row, the last being {id_}: {failure.why}; "
                "nothing more is set aside until it succeeds; correct the transform"
            )
        why = f"transform {failure.path} failed on row {id_}: {failure.why}"
        return Transformed(
            batch=batch.slice(0, 0).cast(SCHEMA), failed={id_: dead(Kind.TRANSFORM, why)}, failures=failures
        )
    middle = batch.num_rows // 2
    left = _run(transforms, batch.slice(0, middle), failures)
    right = _run(transforms, batch.slice(middle), left.failures)
    whole = pa.Table.from_batches([left.batch, right.batch], SCHEMA).combine_chunks().to_batches()
    return Transformed(
        batch=whole[0] if whole else left.batch, failed=left.failed | right.failed, failures=right.failures
    )


class _Failure(Exception):  # noqa: N818
    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


def _checked(transforms: Sequence[tuple[str, Transform]], batch: pa.RecordBatch) -> pa.RecordBatch:
    for path, function in transforms:
        if not batch.num_rows:
            # Every row was filtered.
            break
        try:
            given = function(batch)
        except Exception as error:
            raise _Failure(path, f"{type(error).__name__}: {error}") from error
        batch = _result(path, batch, given)
    return batch


def _result(path: str, batch: pa.RecordBatch, given: object) -> pa.RecordBatch:
    if not isinstance(given, pa.RecordBatch):
        raise _Failure(path, f"it returned a {type(given).__name__}, not a record batch")
    missing = [name for name in SCHEMA.names if name not in given.schema.names]
    if missing:
        raise _Failure(path, f"its result has no column {', '.join(missing)}")
    try:
        result = given.select(SCHEMA.names).cast(SCHEMA)
        result.validate()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, ValueError) as error:
        raise _Failure(path, f"its result has another schema: {error}") from error
    ids = result.column("id").to_pylist()
    unknown = set(ids) - set(batch.column("id").to_pylist())
    if unknown:
        raise _Failure(path, f"its result has rows that it was not given: {sorted(map(str, unknown))[:3]}")
    if len(set(ids)) != len(ids):
        raise _Failure(path, "its result has a row twice")
    return result
