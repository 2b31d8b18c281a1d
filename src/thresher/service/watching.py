"""The watch over a term: a thread that checks the shards and runs the workload's checks until the term is over.

1. A shard that has failed for good stops the engine: the other shards alone are no pipeline.
2. A `Trouble` that a check raises is counted, and noted until a check of the same name succeeds.
3. A step of a shard that hangs is logged and announced as an event, with the reason if it is known.
4. Any other error of a check ends the leadership: it is kept in `error`, and the engine is stopped.
5. A bug in the watch ends the leadership too: an unwatched leader could run on beside a newer term for ever.

An error that is found after the end of the term is dropped, because it is not about the next term.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from thresher.core.errors import PipelineProblem, ThresherError, Trouble, kind_of
from thresher.service.events.event import Event, StepHangs
from thresher.service.hanging_steps import HangingStep, LoggedSteps, StepKey, hanging_steps_of
from thresher.service.metrics import standing
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.reach import Reach
from thresher.service.workload import PeriodicCheck, Term, Workload
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.supervision import Phase
from thresher.spark.problem import EngineProblem

logger = logging.getLogger(__name__)

# The time between two rounds of checks.
WATCH_SECONDS = 1.0
_END_SECONDS = 5.0
# The kind of trouble of a leader with a shard that Spark does not run.
NO_SLOT = "no_spark_slot"
# The kind of trouble of a leader with a shard that takes rows and sends none.
STANDS = "rows_stand"


class Watching:
    """Watches one term while its engine runs."""

    def __init__(
        self,
        workload: Workload,
        term: Term,
        engine: Engine,
        process_counts: ProcessCounts,
        *,
        stopping: Callable[[], bool],
        reach: Reach | None = None,
        announce: Callable[[Event], None] = lambda _event: None,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self._name, self._label = workload.name, workload.wording.label
        self._term, self._engine, self._process_counts, self._stopping = term, engine, process_counts, stopping
        self._reach = reach or Reach(())
        # The error that ends the leadership.
        self.error: ThresherError | None = None
        # Kind and text of each `Trouble` that lasts, by the name of its check.
        self._troubles: dict[str, tuple[str, str]] = {}
        self._announce = announce
        self._stall_seconds = term.pipeline.policy.stall_seconds
        self._logged = LoggedSteps()
        # The known reasons of hanging steps; replaced as a whole.
        self._reasons: dict[StepKey, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=[watch_seconds], name=f"{self._label}-watch", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, seconds: float = _END_SECONDS) -> None:
        """End the watch with its term. A check that hangs in a client is left behind after these seconds."""
        self._over.set()
        self._thread.join(seconds)
        self._reach.checks_ended()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Kind and text of a check's `Trouble`, or of a shard without a slot, with a hanging step, or that stands."""
        snapshot = self._engine.snapshot()
        found = [
            *self._troubles.copy().values(),
            *((NO_SLOT, f"shard {shard}: {needed}") for shard, needed in snapshot.without_slot.items()),
            *(("step_hangs", str(step)) for step in self.hanging_steps),
            *((STANDS, f"shard {shard}: {stands}") for shard, stands in standing(snapshot.shards).items()),
        ]
        return found[0] if found else None

    @property
    def hanging_steps(self) -> tuple[HangingStep, ...]:
        """The steps of shards that hang. Never waits: a reason may be missing at first."""
        return hanging_steps_of(self._engine.snapshot().shards, self._stall_seconds, self._reasons)

    def _run(self, watch_seconds: float) -> None:
        try:
            with self._term.watch() as checks:
                self._run_checks(checks, watch_seconds)
        except Exception as error:
            message = f"the {self._label}'s watch broke"
            logger.exception(message, extra={self._label: self._name})
            self._process_counts.count_error(error)
            self._blame(EngineProblem(f"{message}, which is a bug: {type(error).__name__}: {error}"))

    def _run_checks(self, checks: Sequence[PeriodicCheck], watch_seconds: float) -> None:
        checked = [time.monotonic()] * len(checks)
        while not self._over.wait(watch_seconds) and not self._stopping() and not self._engine.done:
            if any(shard.state is Phase.FAILED for shard in self._engine.snapshot().shards):
                self._engine.request_stop()
                return
            self._log_hanging_steps()
            try:
                for place, check in enumerate(checks):
                    if time.monotonic() - checked[place] >= check.every_seconds:
                        checked[place] = time.monotonic()
                        self._check(check)
            except Trouble:
                continue
            except PipelineProblem as error:
                self._process_counts.count_error(error)
                self._blame(error)
                return

    def _log_hanging_steps(self) -> None:
        """Log and announce steps that hang, and log steps that hang no more."""
        now, hanging = time.monotonic(), self.hanging_steps
        due, ended = self._logged.due(hanging, now), self._logged.ended(hanging)
        self._logged = self._logged.logged(hanging, due, now)
        self._reasons = {key: why for key, why in self._reasons.items() if key not in ended}
        for shard, step in ended:
            message = "step '%s' of shard %d hangs no more"
            logger.info(message, step, shard, extra={self._label: self._name, "shard": shard, "step": step})
        for each in due:
            self._log_hanging_step(each)

    def _log_hanging_step(self, step: HangingStep) -> None:
        try:
            # `explain` asks servers: it is not called while one of them is known not to answer.
            met = next(iter(self._troubles.values()), None)
            why = self._term.explain(step.shard, step.step) if met is None else met[1]
        except Exception as error:  # noqa: BLE001 - a diagnosis that fails ends nothing
            why = str(error) or type(error).__name__
        if self._over.is_set():
            return
        if why is not None:
            self._reasons = {**self._reasons, step.key: why}
        logger.warning("%s", replace(step, why=why), extra={self._label: self._name, **asdict(step), "why": why})
        self._announce(StepHangs(shard=step.shard, step=step.step, seconds=step.seconds, why=why))

    def _check(self, check: PeriodicCheck) -> None:
        """Run a check once, and note a `Trouble` until a check of the same name succeeds."""
        try:
            check.run()
        except Trouble as error:
            self._process_counts.count_error(error)
            self._troubles[check.at] = (kind_of(error), str(error))
            # A check that hung beyond the end of the term says nothing about the next leadership.
            self._reach.failed(check.at, error, check=not self._over.is_set())
            raise
        self._troubles.pop(check.at, None)
        self._reach.succeeded(check.at)

    def _blame(self, error: ThresherError) -> None:
        if not self._over.is_set():
            self.error = error
        self._engine.request_stop()
