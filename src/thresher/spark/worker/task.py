"""What runs inside a Spark task: one attempt at one shard, from hello to outcome.

It returns its outcome as the task's only value, so that its type survives and Spark counts no failure. Whatever a
function of the chain does short of killing the process ends up as an outcome; the first error is the one that counts.
"""

import contextlib
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from pyspark import TaskContext

from thresher.core.errors import ThresherError
from thresher.spark.bell import Bell
from thresher.spark.outcome import Finished, Outcome, Replaced, Stopped, encode, outcome_of
from thresher.spark.pipeline import Step
from thresher.spark.problem import StepUnusable, VersionMismatch
from thresher.spark.spec import Parcel, Spec
from thresher.spark.worker.line import Line, LineReplaced, version_mismatch
from thresher.spark.worker.shard import Figures, Shard


class Task:
    """The function that Spark ships: found by its import path in the worker, with its parcel as all it carries."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def __call__(self, _partition: Iterable[object]) -> Iterator[bytes]:
        """Run the shard and yield its outcome."""
        spec = self._parcel.open()
        if spec is None:
            yield encode(outcome_of(VersionMismatch(version_mismatch(self._parcel.version))))
            return
        context = TaskContext.get()
        figures = Figures()
        outcome = run_shard(spec, figures, task=context.taskAttemptId() if context is not None else 0)
        yield encode(outcome, figures.counts)


def run_shard(spec: Spec, figures: Figures, *, task: int) -> Outcome:
    """Run one attempt. Returns when the chain has ended; the process may be ended earlier, see `line`."""
    # Behind what the worker has of its own; a script's directory is not known there.
    sys.path += [place for place in spec.path if place not in sys.path]
    bell = Bell()
    line = Line(spec, bell, figures, task=task)
    try:
        line.open()
    except LineReplaced:
        return Replaced()
    except ThresherError as error:
        return outcome_of(error)
    outcome = _outcome(spec, bell, figures, line)
    # A function may have closed what is closed here: that changes nothing any more.
    with contextlib.suppress(Exception):
        line.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return outcome


def _outcome(spec: Spec, bell: Bell, figures: Figures, line: Line) -> Outcome:
    first: BaseException | None = None

    def on_close(error: BaseException | None) -> None:
        nonlocal first
        first = error
        line.closing(error)

    try:
        with ExitStack() as resources:
            shard = Shard(
                pipeline=spec.pipeline,
                index=spec.shard,
                shards=spec.shards,
                attempt=spec.attempt,
                bell=bell,
                figures=figures,
                resources=resources,
                on_event=line.event,
            )
            line.watch()
            # Not before the line is watched: importing may take long, or hang.
            from thresher.spark.worker.chain import run_chain  # noqa: PLC0415

            run_chain(_steps(spec), shard, on_close)
    except BaseException as error:  # noqa: BLE001 - SystemExit and all: what it means is the supervisor's to decide
        return outcome_of(first or error)
    if first is not None:
        # What somebody entered has swallowed it; the rows that it stands for would be lost silently.
        return outcome_of(first)
    return Stopped(why=bell.why) if bell.rung else Finished()


def _steps(spec: Spec) -> Sequence[Step]:
    try:
        steps: Sequence[Step] = pickle.loads(spec.steps)  # noqa: S301 - it comes from our own driver
    except BaseException as error:
        raise StepUnusable(
            f"a configuration cannot be unpacked in the worker: {type(error).__name__}: {error}; "
            "give it plain values, or objects of modules that the workers can import"
        ) from error
    return steps
