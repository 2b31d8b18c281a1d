"""The watch over one term: looks at the shards and at what the workload names, in a thread, until the term is over.

1. A shard that has failed for good stops the engine: the others alone are no pipeline.
2. Trouble is noted until a look at the same thing succeeds, and counted each time.
3. A step of a shard that hangs is told of, with what it waits for: by a line of the log and an event.
4. Any other problem is the reason why the leadership ends. It is kept, and the engine is stopped.
5. A watch that breaks ends the leadership too: unwatched, it could go on under a newer term for ever.

A finding after the end of the term is dropped: it concerns the next one.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from thresher.core.errors import PipelineProblem, ThresherError, Trouble, kind_of
from thresher.service.events.event import Event, StepHangs
from thresher.service.ledger import Ledger
from thresher.service.servers.reach import Reach
from thresher.service.stall import Stall, StepKey, ToldStalls, stalls_of
from thresher.service.workload import Look, Term, Workload
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.supervision import Phase
from thresher.spark.problem import EngineProblem

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0
_END_SECONDS = 5.0


class Watching:
    """Watches one term while its engine runs."""

    def __init__(
        self,
        workload: Workload,
        term: Term,
        engine: Engine,
        ledger: Ledger,
        *,
        stopping: Callable[[], bool],
        reach: Reach | None = None,
        announce: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self._name, self._label = workload.name, workload.wording.label
        self._term, self._engine, self._ledger, self._stopping = term, engine, ledger, stopping
        self._reach = reach or Reach(())
        # Why the leadership has to end.
        self.error: ThresherError | None = None
        # The kind and the text of the trouble met, by what was looked at, while it lasts.
        self._troubles: dict[str, tuple[str, str]] = {}
        self._announce = announce
        self._stall_seconds = term.pipeline.policy.stall_seconds
        self._told_stalls = ToldStalls()
        # What steps that hang were found to wait for; replaced as a whole.
        self._reasons: dict[StepKey, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{self._label}-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """The term is over. A look that hangs in a client is not waited for for long."""
        self._over.set()
        self._thread.join(_END_SECONDS)
        self._reach.looks_ended()

    @property
    def alive(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what keeps it from looking, or else of the step that has hung longest."""
        met = next(iter(self._troubles.copy().values()), None)
        return met or next((("step_hangs", str(stall)) for stall in self.stalls), None)

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """The steps of shards that hang. Never waits: the reason may come later."""
        return stalls_of(self._engine.snapshot().shards, self._stall_seconds, self._reasons)

    def _run(self) -> None:
        try:
            with self._term.watch() as looks:
                self._look_on(looks)
        except Exception as error:
            message = f"the {self._label}'s watch broke"
            logger.exception(message, extra={self._label: self._name})
            self._ledger.count_error(error)
            self._blame(EngineProblem(f"{message}, which is a bug: {type(error).__name__}: {error}"))

    def _look_on(self, looks: Sequence[Look]) -> None:
        looked = [time.monotonic()] * len(looks)
        while not self._over.wait(_WATCH_SECONDS) and not self._stopping() and not self._engine.done:
            if any(shard.state is Phase.FAILED for shard in self._engine.snapshot().shards):
                self._engine.request_stop()
                return
            self._tell_stalls()
            try:
                for place, look in enumerate(looks):
                    if time.monotonic() - looked[place] >= look.every_seconds:
                        looked[place] = time.monotonic()
                        self._look(look)
            except Trouble:
                continue
            except PipelineProblem as error:
                self._ledger.count_error(error)
                self._blame(error)
                return

    def _tell_stalls(self) -> None:
        """Tell of steps that hang, and of those that hang no more."""
        now, stalls = time.monotonic(), self.stalls
        due, ended = self._told_stalls.due(stalls, now), self._told_stalls.ended(stalls)
        self._told_stalls = self._told_stalls.told(stalls, due, now)
        self._reasons = {key: why for key, why in self._reasons.items() if key not in ended}
        for shard, step in ended:
            message = "step '%s' of shard %d hangs no more"
            logger.info(message, step, shard, extra={self._label: self._name, "shard": shard, "step": step})
        for stall in due:
            self._tell_stall(stall)

    def _tell_stall(self, stall: Stall) -> None:
        try:
            # A server that is known not to answer is not asked.
            met = next(iter(self._troubles.values()), None)
            why = self._term.explain(stall.shard, stall.step) if met is None else met[1]
        except Exception as error:  # noqa: BLE001 - a diagnosis that fails ends nothing
            why = str(error) or type(error).__name__
        if self._over.is_set():
            return
        if why is not None:
            self._reasons = {**self._reasons, stall.key: why}
        logger.warning("%s", replace(stall, why=why), extra={self._label: self._name, **asdict(stall), "why": why})
        self._announce(StepHangs(shard=stall.shard, step=stall.step, seconds=stall.seconds, why=why))

    def _look(self, look: Look) -> None:
        """Look once, and note trouble until a look at the same thing succeeds."""
        try:
            look.run()
        except Trouble as error:
            self._ledger.count_error(error)
            self._troubles[look.at] = (kind_of(error), str(error))
            # One that hung over the end says nothing about the next leadership.
            self._reach.failed(look.at, error, look=not self._over.is_set())
            raise
        self._troubles.pop(look.at, None)
        self._reach.succeeded(look.at)

    def _blame(self, error: ThresherError) -> None:
        if not self._over.is_set():
            self.error = error
        self._engine.request_stop()
