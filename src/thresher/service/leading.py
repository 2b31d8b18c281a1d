"""A leadership: a process takes over, runs the shards on the engine under a watch, and ends, possibly with an error.

1. A retryable error of the take-over is retried; any other error ends the leadership at once.
2. The engine restarts shards after retryable errors. A shard that fails for good ends the leadership with its error.
3. The watch ends a leadership that was superseded, even an idle one.
4. If a restore of the database removed the term, the leadership does not end: it takes over again.

A crash of this process ends its shards. The next leader's take-over and the shards' own recovery repair the rest.
"""

import logging
import math
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from thresher.core.errors import Superseded, ThresherError, Trouble
from thresher.service.abandonable_call import CallAbandoned, answer_of
from thresher.service.events.event import REFRESHED, Event, LeaderRefreshed
from thresher.service.health import Role, ShardHealth
from thresher.service.metrics import shard_health, standing
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.reach import Reach
from thresher.service.take_over import TakeOver
from thresher.service.watching import WATCH_SECONDS, Watching
from thresher.service.workload import Term, Workload
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.problem import EngineLost, ShardsFailed
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1


def spark_of(workload: Workload, options: SparkOptions | None) -> SparkOptions:
    """Return the options with the modules that Spark's worker daemon imports for the workload."""
    return replace(options or SparkOptions(), preload=workload.preload)


class Leading:
    """A leadership of a workload. `run` returns when it has ended; the properties may be read in any thread."""

    def __init__(
        self,
        workload: Workload,
        *,
        spark: SparkOptions | None = None,
        draw: Callable[[], float] = random.random,
        process_counts: ProcessCounts | None = None,
        reach: Reach | None = None,
        warm: WarmSpark | None = None,
        terms: Callable[[], str] = lambda: str(uuid.uuid4()),
        wanted: Callable[[], bool] = lambda: True,
        announce: Callable[[Event], None] = lambda _event: None,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self.workload = workload
        self._announce, self._watch_seconds = announce, watch_seconds
        # A process that leads several times gives the same counts to all its leaderships.
        self.process_counts = process_counts or ProcessCounts()
        self.reach = reach or Reach(workload.probes)
        self._spark, self._warm, self._draw = spark_of(workload, spark), warm, draw
        self._stop_requested = threading.Event()
        self.take_over = TakeOver(
            workload, self.process_counts, stop_requested=self._stop_requested, terms=terms, wanted=wanted, draw=draw
        )
        self._term: Term | None = None
        self._engine: Engine | None = None
        self._watching: Watching | None = None
        # The last error of each shard when its recovery was last logged.
        self._logged_errors: dict[int, str | None] = {}
        self._ended: Role | None = None

    @property
    def role(self) -> Role:
        """The present role of this process."""
        if self._ended is not None:
            return self._ended
        if self._stop_requested.is_set():
            return Role.STOPPING
        return Role.TAKING_OVER if self._watching is None else Role.LEADING

    @property
    def term(self) -> str | None:
        """The id of the present or the last term."""
        return None if self._term is None else self._term.id

    @property
    def alarms(self) -> Mapping[str, str]:
        """Things that wait: topics, and shards without a slot of Spark or whose rows stand; and why."""
        snapshot = self.snapshot()
        waiting = {} if snapshot is None else {**standing(snapshot.shards), **snapshot.without_slot}
        held = {} if self._term is None else self._term.alarms
        return {**held, **{f"shard {shard}": needed for shard, needed in waiting.items()}}

    @property
    def waiting_for(self) -> str | None:
        """The reason why this process cannot take over yet."""
        return self.take_over.waiting_for

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Kind and text of the present problem: a check of the watch that failed, or a step of a shard that hangs."""
        watching = self._watching
        return None if watching is None else watching.trouble

    def shard_health(self) -> tuple[ShardHealth, ...]:
        """Return the health of each shard; nothing before the shards were started."""
        snapshot = self.snapshot()
        return tuple(shard_health(each, self.workload.wording) for each in (snapshot.shards if snapshot else ()))

    def work_waits(self) -> bool | None:
        """Return whether work waits; None before the first take-over. Raises `Trouble`; may take seconds."""
        return None if self._term is None else self._term.work_waits()

    def silent_seconds(self) -> dict[str, float]:
        """Return for how many seconds each thread has been unresponsive; infinite if it has died.

        A step of a shard that hangs in the user's own code is listed too, because a restart helps against it.
        """
        engine, watching = self._engine, self._watching
        if self.role is not Role.LEADING or engine is None or watching is None:
            return {}
        # When a leadership ends, its watch ends before the engine: only a running engine needs a watch.
        going_on = engine.snapshot().state in {EngineState.STARTING, EngineState.RUNNING}
        return {
            "engine": engine.silent_seconds(),
            "watch": math.inf if going_on and not watching.alive else 0.0,
            **{
                f"{each.step} of shard {each.shard}": math.inf
                for each in watching.hanging_steps
                if each.step in self.workload.wording.own_steps
            },
        }

    def snapshot(self) -> Snapshot | None:
        """Return the engine's snapshot; None before the shards were started."""
        return None if self._engine is None else self._engine.snapshot()

    def request_stop(self) -> None:
        """Request a graceful stop. Safe in a signal handler, harmless when repeated."""
        self._stop_requested.set()
        if self._engine is not None:
            self._engine.request_stop()

    def kill(self) -> None:
        """End at once. Safe in a signal handler. Before there is an engine to kill, it raises `KeyboardInterrupt`."""
        self._stop_requested.set()
        if self._engine is None:
            raise KeyboardInterrupt
        self._engine.kill()

    def abandon(self) -> None:
        """End at once without finishing open batches, because another process may lead already. Safe in any thread."""
        self._stop_requested.set()
        if self._engine is not None:
            self._engine.kill()

    def run(self) -> Snapshot | None:
        """Take over and lead until a stop. Raises the error that ended it; None if it was stopped before it led."""
        try:
            snapshot = self._run()
        except BaseException:
            self._ended = Role.FAILED
            raise
        self._ended = Role.STOPPED
        return snapshot

    def _run(self) -> Snapshot | None:
        self.workload.check(local=self._spark.master is None)
        while True:
            term = self.take_over.run()
            if term is None or self._stop_requested.is_set():
                return None
            self.reach.all_succeeded()
            try:
                return self._lead(term)
            except Superseded:
                if not self._taken_back(term):
                    # Counted once, however many shards were refused.
                    self.process_counts.count("fences.term")
                    raise
                message = f"the term of this {self._label} is gone, and no other leads: it takes over again"
                logger.warning(message, extra=self._fields(term=term.id))

    def _lead(self, term: Term) -> Snapshot:
        """Run the shards for as long as the term lasts."""

        def observe(shard: int, event: str, fields: dict[str, Any]) -> None:
            # Bound to this term and engine: an event that arrives late must not reach the next term.
            self._observe(term, engine, shard, event, fields)

        engine = Engine(term.pipeline, spark=self._spark, warm=self._warm, observer=observe, draw=self._draw)
        self._term, self._engine = term, engine
        engine.start()
        self.process_counts.follow(engine.snapshot)
        if self._stop_requested.is_set():
            engine.request_stop()
        watching = Watching(
            self.workload,
            term,
            engine,
            self.process_counts,
            stopping=self._stop_requested.is_set,
            reach=self.reach,
            announce=self._announce,
            watch_seconds=self._watch_seconds,
        )
        watching.start()
        self._watching = watching
        try:
            snapshot = engine.wait()
        except (EngineLost, ShardsFailed) as error:
            # The watch's error comes first: a superseded process must not be restarted, but `EngineLost`, after a
            # stop that Spark did not answer, would allow it.
            cause = error.__cause__
            raise watching.error or (cause if isinstance(cause, ThresherError) else error) from None
        finally:
            watching.end()
            self._watching = None
            self.process_counts.close()
        if watching.error is not None:
            raise watching.error
        return snapshot

    def _taken_back(self, term: Term) -> bool:
        """Whether a restore of the database removed the term, rather than a newer take-over."""
        while not self._stop_requested.is_set():
            try:
                return answer_of(term.taken_back, unless=self._stop_requested, name="taken-back")
            except CallAbandoned:
                break
            except Trouble:
                self._stop_requested.wait(_RETRY_SECONDS)
        return False

    def _observe(self, term: Term, engine: Engine, shard: int, event: str, fields: dict[str, Any]) -> None:
        """Handle an event of a shard, in the engine's observer thread."""
        doing = self.workload.wording.doing
        term.observe(shard, event, fields)
        if event == REFRESHED and self._ended is None:
            self._announce(LeaderRefreshed(leader_id=uuid.UUID(fields["leader_id"]), shard=shard))
        if event == doing:
            trouble = engine.snapshot().shards[shard].last_error
            if self._logged_errors.get(shard, "") != trouble:
                # Logged once for each error that the shard has recovered from.
                self._logged_errors[shard] = trouble
                message = f"shard %d is {doing}"
                logger.info(message, shard, extra=self._fields(shard=shard, **fields))

    @property
    def _label(self) -> str:
        return self.workload.wording.label

    def _fields(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of a log line."""
        return {self._label: self.workload.name, **fields}
