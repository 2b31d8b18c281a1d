"""The Spark task: one attempt at one shard, from hello to outcome.

The outcome is returned as the task's only value, so that its type survives and Spark counts no failure. Every error
of a function becomes an outcome; after several errors, the first counts. A killed process returns no outcome, see
`outcome.TaskLost`.
"""

import contextlib
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from pyspark import TaskContext

from thresher.core.errors import ThresherError
from thresher.core.trusted_modules import judge_modules_of
from thresher.spark.outcome import Finished, Outcome, Replaced, Stopped, encode, outcome_of
from thresher.spark.pipeline import Step
from thresher.spark.problem import StepUnusable, VersionMismatch
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.task_spec import PackedTaskSpec, TaskSpec
from thresher.spark.worker.line import Line, LineReplaced, version_mismatch
from thresher.spark.worker.running_steps import RunningSteps
from thresher.spark.worker.shard import Figures, Shard
from thresher.spark.worker.task_watch import TaskWatch


class Task:
    """The function that Spark ships. The worker finds it by its import path; it carries nothing but its spec."""

    def __init__(self, spec: PackedTaskSpec) -> None:
        self._spec = spec

    def __call__(self, _partition: Iterable[object]) -> Iterator[bytes]:
        """Run the shard and yield its outcome."""
        spec = self._spec.unpack()
        if spec is None:
            yield encode(outcome_of(VersionMismatch(version_mismatch(self._spec.version))))
            return
        context = TaskContext.get()
        figures = Figures()
        outcome = run_shard(spec, figures, task=context.taskAttemptId() if context is not None else 0)
        yield encode(outcome, figures.counts)


def run_shard(spec: TaskSpec, figures: Figures, *, task: int) -> Outcome:
    """Run one attempt and return when the chain has ended. `task_watch` may end the process earlier."""
    judge_modules_of(*spec.judged)
    # The driver's paths come last: they are needed only for modules that the worker cannot find otherwise.
    sys.path += [path for path in spec.path if path not in sys.path]
    steps = RunningSteps()
    line = Line(spec, figures, task=task, steps=steps)
    try:
        line.open()
    except LineReplaced:
        return Replaced()
    except ThresherError as error:
        return outcome_of(error)
    stop_requested = SignalSafeEvent()
    watch = TaskWatch(line, spec.policy, stop_requested)
    outcome = _run_watched(spec, stop_requested, figures, line, watch, steps)
    # The outcome is known; a function may have closed the descriptors that are closed here.
    with contextlib.suppress(Exception):
        watch.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return outcome


def _run_watched(
    spec: TaskSpec, stop_requested: SignalSafeEvent, figures: Figures, line: Line, watch: TaskWatch, steps: RunningSteps
) -> Outcome:
    first: BaseException | None = None

    def on_close(error: BaseException | None) -> None:
        nonlocal first
        first = error
        watch.chain_ended(error)

    try:
        with ExitStack() as resources:
            shard = Shard(
                pipeline=spec.pipeline,
                index=spec.shard,
                shards=spec.shards,
                attempt=spec.attempt,
                stop_requested=stop_requested,
                figures=figures,
                resources=resources,
                on_event=line.event,
                steps=steps,
            )
            watch.start()
            # Imported only now, under the watch, because an import may take long or hang.
            from thresher.spark.worker.chain import run_chain  # noqa: PLC0415

            run_chain(_steps(spec), shard, on_close)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the supervisor decides what it means
        return outcome_of(first or error)
    if first is not None:
        # A context manager has swallowed the error. It counts all the same, or its rows would be lost silently.
        return outcome_of(first)
    return Stopped(why=stop_requested.why) if stop_requested.is_set() else Finished()


def _steps(spec: TaskSpec) -> Sequence[Step]:
    try:
        steps: Sequence[Step] = pickle.loads(spec.steps)  # noqa: S301 - it comes from our own driver
    except BaseException as error:
        raise StepUnusable(
            f"a configuration cannot be unpacked in the worker: {type(error).__name__}: {error}; "
            "give it plain values, or objects of modules that the workers can import"
        ) from error
    return steps
