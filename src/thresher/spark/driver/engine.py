"""Runs a pipeline: one long Spark task per shard, each supervised on its own, until it ends or is stopped.

1. `start` opens a session, listens for the tasks' connections (lines), and launches one Spark job per shard.
2. A failed shard is launched again after a back-off. The other shards run on. See `supervision`.
3. `stop` lets every shard finish its open batch, ends the shards that exceed the grace period, and closes the session.
4. `kill` ends everything at once.
5. If Spark is lost, the shards end and the engine fails. It starts no other Spark: the program has to be started again.

The event loop's thread changes all state, see `lifecycle`. The engine's own thread opens and closes the session. The
threads of `shard_jobs` wait for Spark, and the thread of `observer` calls the program's observer.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from thresher.core.errors import ThresherError
from thresher.core.interruptible import interruptible
from thresher.spark.driver.engine_status import EngineStatus
from thresher.spark.driver.lifecycle import STOP_MARGIN_SECONDS, Lifecycle
from thresher.spark.driver.observer import Observer, ObserverThread
from thresher.spark.driver.shutdown_hook import ShutdownHook
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.pipeline import Pipeline
from thresher.spark.problem import EngineLost, EngineProblem, SparkFailed, StopForced
from thresher.spark.session.session import Session, call_within, open_session
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark

logger = logging.getLogger(__name__)

# How long the JVM may take to remove the shutdown hook.
_HOOK_SECONDS = 5.0


class Engine:
    """One run of one pipeline. As a context manager, it starts on entry and stops on exit.

    A `warm` Spark is used instead of a new one, and left running. The observer is called with shard, name and fields of
    every event that a function reports (`Shard.event`), in a thread of its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        spark: SparkOptions | None = None,
        warm: WarmSpark | None = None,
        observer: Observer | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.pipeline = pipeline
        self._options = spark or SparkOptions()
        self._warm = warm
        self._status = EngineStatus()
        self._observer = ObserverThread(observer)
        self._lifecycle = Lifecycle(
            pipeline, self._status, self._observer, line_port=self._options.line_port, draw=draw
        )

    def start(self) -> None:
        """Start, and return at once. Later errors are in the snapshot, and `wait` raises them."""
        if self._status.state is not EngineState.NEW:
            raise EngineProblem("an engine runs once: make another")
        self._status.state = EngineState.STARTING
        self._lifecycle.loop.start()
        threading.Thread(target=self._run, name="engine-session", daemon=True).start()
        self._observer.start()

    def request_stop(self) -> None:
        """Request a graceful stop and return at once. Safe in a signal handler, harmless when repeated."""
        self._status.stop_requested.set("stop")
        self._lifecycle.loop.post(self._lifecycle.on_stop)

    def kill(self) -> None:
        """End everything at once; open batches are not finished. Safe in a signal handler.

        `wait` then raises `StopForced`.
        """
        self._status.kill_requested.set("kill")
        self._status.stop_requested.set("kill")
        self._lifecycle.loop.post(self._lifecycle.on_kill)

    def stop(self) -> Snapshot:
        """Stop gracefully and return when nothing is left running."""
        self.request_stop()
        return self.wait()

    def wait(self, seconds: float | None = None) -> Snapshot:
        """Wait until the engine has ended, at most `seconds`, and return a snapshot.

        Raises the error that ended it: `ShardsFailed`, `EngineLost`, `StopForced`, or the error of Spark's start.
        """
        if self._status.state is EngineState.NEW:
            raise EngineProblem("the engine was not started")
        with interruptible():
            done = self._status.done.wait(seconds)
        if done and self._status.error is not None:
            raise self._status.error
        return self.snapshot()

    @property
    def done(self) -> bool:
        """Whether the engine has ended and nothing of it is left."""
        return self._status.done.is_set()

    def silent_seconds(self) -> float:
        """Return for how long the event loop, which supervises the shards, has been unresponsive. Never waits."""
        if self.done or self._status.state is EngineState.NEW:
            return 0.0
        return self._lifecycle.loop.silent_seconds()

    def snapshot(self) -> Snapshot:
        """Return the present state of the engine and its shards. Never waits, and works in every state."""
        now = time.monotonic()
        error, session = self._status.error, self._lifecycle.session
        return Snapshot(
            pipeline=self.pipeline.name,
            state=self._status.state,
            error=str(error) if error is not None else None,
            master=session.master if session is not None else None,
            shards=tuple(record.snapshot(now) for record in self._lifecycle.shards.records),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except ThresherError:
            # An error that the `with` body raised says more than the engine's.
            if kind is None:
                raise

    def _run(self) -> None:
        """Open the session, and close it when all shards are over. The other threads are ended even after an error."""
        session = None
        try:
            session = self._open()
            if session is not None:
                self._serve(session)
        except Exception as error:
            logger.exception("the engine's session thread failed")
            self._status.fail(EngineLost(f"Spark was lost: {type(error).__name__}: {error}; start the program again"))
        finally:
            self._lifecycle.drained.set()
            if session is not None:
                self._close(session)
            self._lifecycle.finish()
            self._observer.close(at_once=self._status.kill_requested.is_set())
            self._status.finish()

    def _open(self) -> Session | None:
        """Open a session; return None if that failed, or if a stop was requested before it was open."""
        try:
            if self._warm is not None:
                return self._warm.lend(self._status.stop_requested)
            return open_session(
                self._options,
                name=self.pipeline.name,
                shards=self.pipeline.shards,
                abort=self._status.stop_requested,
            )
        except StopForced as error:
            if self._status.kill_requested.is_set():
                self._status.fail(error)
        except ThresherError as error:
            self._status.fail(error)
        except Exception as error:
            logger.exception("Spark could not be started")
            self._status.fail(SparkFailed(f"Spark could not be started: {type(error).__name__}: {error}"))
        self._lifecycle.shards.never_started()
        return None

    def _serve(self, session: Session) -> None:
        """Run the shards on the session until all are over."""
        hook = self._shutdown_hook(session)
        self._lifecycle.loop.post(partial(self._lifecycle.on_opened, session))
        self._lifecycle.over.wait()
        if hook is not None:
            call_within(_HOOK_SECONDS, hook.remove, self._status.kill_requested)

    def _shutdown_hook(self, session: Session) -> ShutdownHook | None:
        """Under `spark-submit`, hook into the JVM's shutdown, so that SIGTERM stops the shards gracefully."""
        if not session.submitted:
            return None
        seconds = self.pipeline.policy.grace_seconds + STOP_MARGIN_SECONDS

        def drain() -> None:
            self.request_stop()
            self._lifecycle.drained.wait(seconds)

        return ShutdownHook(session.context._gateway, drain, seconds=seconds)

    def _close(self, session: Session) -> None:
        """Close the session, and return when no worker is left on this machine."""
        try:
            session.close(self._status.kill_requested)
        except Exception:
            logger.exception("Spark could not be closed gracefully")
        patience = self.pipeline.policy.orphan_seconds + 1.0
        self._lifecycle.shards.workers.wait_until_gone(patience, self._status.kill_requested)
