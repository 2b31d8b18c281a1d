"""The life cycle of an engine on an open session: start, stop, kill, the loss of Spark, the end of the last shard.

Everything here runs in the event loop's thread, except `finish`. Methods named `on_…` are posted to the loop by other
threads. The engine's own thread waits for `over`, and then closes the session.
"""

import threading
import time
from collections.abc import Callable

from thresher.core.errors import ThresherError
from thresher.spark.driver.engine_status import EngineStatus
from thresher.spark.driver.event_loop import EventLoop
from thresher.spark.driver.observer import ObserverThread
from thresher.spark.driver.shard_supervisor import ShardSupervisor
from thresher.spark.driver.snapshot import EngineState
from thresher.spark.pipeline import Pipeline
from thresher.spark.problem import EngineLost, EngineProblem, ShardsFailed, SparkFailed, StopForced
from thresher.spark.session.session import Session

# How long a stop may take beyond the shards' grace period. After that, everything is killed.
STOP_MARGIN_SECONDS = 20.0


class Lifecycle:
    """The event loop and the shards of one engine, from the opened session to the last shard's end."""

    def __init__(
        self,
        pipeline: Pipeline,
        status: EngineStatus,
        observer: ObserverThread,
        *,
        line_port: int,
        draw: Callable[[], float],
    ) -> None:
        self._pipeline = pipeline
        self._status = status
        self._line_port = line_port
        self._stop_by: float | None = None
        self._closing = False
        self.session: Session | None = None
        # `drained`: no shard runs any more. `over`: the engine's thread may close the session.
        self.drained, self.over = threading.Event(), threading.Event()
        self.loop = EventLoop("engine", self._on_time, self._on_broken)
        self.shards = ShardSupervisor(pipeline, self.loop, observer, draw=draw, on_spark_lost=self._on_spark_lost)

    def on_opened(self, session: Session) -> None:
        """Start the shards on the opened session, unless a stop was requested while it opened."""
        self.session = session
        try:
            self.shards.listen(session, self._line_port)
        except OSError as error:
            where = session.directory or f"{session.bind}:{self._line_port}"
            advice = "" if session.directory else "; change line_port or spark.driver.bindAddress"
            self._status.fail(SparkFailed(f"the driver cannot listen for its tasks on {where}: {error}{advice}"))
            self.on_stop()
            return
        if self._status.stop_requested.is_set():
            self.on_stop()
            return
        self._status.state = EngineState.RUNNING
        self.shards.start()

    def on_stop(self) -> None:
        """Stop gracefully. Repeated calls change nothing: the first call sets the deadline."""
        if self._status.state in {EngineState.STARTING, EngineState.RUNNING}:
            self._status.state = EngineState.STOPPING
        if self.session is not None and self._stop_by is None:
            self._stop_by = time.monotonic() + self._pipeline.policy.grace_seconds + STOP_MARGIN_SECONDS
            self.shards.stop()

    def on_kill(self) -> None:
        """End everything at once."""
        if self._closing:
            # All shards are over. If we started the JVM, killing it saves the wait for its exit.
            if self.session is not None:
                self.session.kill()
        else:
            self._kill(StopForced("stopped at once: open batches were not finished"))

    def finish(self) -> None:
        """Close all lines, end the event loop and wait for its thread. For any other thread."""
        self.loop.post(self._on_finish)
        self.loop.join()

    def _on_finish(self) -> None:
        self.shards.close()
        self.loop.finish()

    def _on_time(self, now: float) -> float | None:
        due = self.shards.on_time(now)
        if self.session is not None and not self._closing:
            if self.shards.over:
                self._close()
            elif self._stop_by is not None and now >= self._stop_by:
                self._kill(
                    EngineLost("Spark did not answer, so its shards could not be stopped gracefully: all were killed")
                )
            elif self._stop_by is not None:
                due = self._stop_by if due is None else min(due, self._stop_by)
        return due

    def _kill(self, error: ThresherError) -> None:
        self._status.fail(error)
        self._status.state = EngineState.STOPPING
        self.shards.kill()

    def _on_spark_lost(self, why: str) -> None:
        self._status.fail(EngineLost(f"{why}: all shards end; start the program again"))

    def _on_broken(self, error: BaseException) -> None:
        """End the engine after a bug in its loop, which supervises the shards. Tasks without a line end themselves."""
        self._status.error = EngineProblem(f"the engine broke, which is a bug: {type(error).__name__}: {error}")
        try:
            self.shards.close()
        finally:
            self.over.set()

    def _close(self) -> None:
        """Note the failed shards once all shards are over, and let the session be closed."""
        self._closing = True
        if failed := self.shards.failed:
            reasons = "; ".join(f"shard {record.shard}: {record.state.last_error}" for record in failed)
            error = ShardsFailed(f"{len(failed)} of {self._pipeline.shards} shards failed for good: {reasons}")
            # The first known error is the cause: the program may recognise its type.
            error.__cause__ = next((record.failure for record in failed if record.failure is not None), None)
            self._status.fail(error)
        self.drained.set()
        self.over.set()
