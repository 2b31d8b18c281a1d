"""Runs a pipeline: one long Spark task per shard, each supervised on its own, until it ends or is told to stop.

1. `start` opens a session, then listens for lines, then launches one job per shard, each from a thread of its own.
2. A failed shard is launched again after a back-off; its neighbours are not touched. See `supervision`.
3. `stop` lets every shard finish its open batch, ends those that do not, and closes the session.
4. `kill` ends everything at once.
5. When Spark itself goes, the shards are told to end and the engine has failed; it is not rebuilt, because whoever
   starts the program knows better when to start it again.

All state is changed in the loop's thread; the other threads only wait for Spark.
"""

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from thresher.core.errors import ThresherError
from thresher.spark.bell import Bell
from thresher.spark.driver.floor import Chore, Floor, Report
from thresher.spark.driver.loop import Loop
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.driver.submit import ShutdownHook
from thresher.spark.pipeline import Pipeline
from thresher.spark.problem import EngineLost, EngineProblem, ShardsFailed, SparkFailed, StopForced
from thresher.spark.session.session import Session, open_session, within
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark

logger = logging.getLogger(__name__)

# What a stop may take beyond the shards' grace before everything is ended by force.
_STOP_MARGIN_SECONDS = 20.0
# What may take a moment at the end, and no more.
_CLOSE_SECONDS = 5.0
# Events that wait for the observer; beyond it, new ones are dropped and counted.
_MOST_REPORTS = 10_000


class Engine:
    """One run of one pipeline. A context manager: entering starts, leaving stops.

    With a `warm` Spark, which somebody else opens and closes, that one is used. The observer is called with shard, name
    and fields of every event that a pipeline reports, in a thread of its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        spark: SparkOptions | None = None,
        warm: WarmSpark | None = None,
        observer: Report | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.pipeline = pipeline
        self._options = spark or SparkOptions()
        self._warm = warm
        self._observer = observer
        self._state = EngineState.NEW
        self._error: ThresherError | None = None
        self._session: Session | None = None
        self._stop_by: float | None = None
        self._stop_asked, self._kill_asked = Bell(), Bell()
        self._closing = False
        # Since when the loop's thread owes an answer.
        self._owed_since: float | None = None
        # No shard runs any more; the session is to be closed; everything has ended.
        self._drained, self._over, self._done = threading.Event(), threading.Event(), threading.Event()
        self._chores: queue.SimpleQueue[Chore | None] = queue.SimpleQueue()
        self._reports: queue.Queue[tuple[int, str, dict[str, Any]] | None] = queue.Queue(_MOST_REPORTS)
        self._observing: threading.Thread | None = None
        self._loop = Loop("engine", self._on_time, self._on_broken)
        self._floor = Floor(
            pipeline,
            self._loop,
            draw=draw,
            report=self._report,
            elsewhere=self._chores.put,
            on_gone=self._on_gone,
        )

    def start(self) -> None:
        """Begin, and return at once. What goes wrong from here on shows in the snapshot and is raised by `wait`."""
        if self._state is not EngineState.NEW:
            raise EngineProblem("an engine runs once: make another")
        self._state = EngineState.STARTING
        self._loop.start()
        threading.Thread(target=self._keep, name="engine-keeper", daemon=True).start()
        if self._observer is not None:
            arguments = (self._observer,)
            self._observing = threading.Thread(
                target=self._observe, args=arguments, name="engine-observer", daemon=True
            )
            self._observing.start()

    def request_stop(self) -> None:
        """Ask for a stop in good order and return at once. Safe in a signal handler, harmless when repeated."""
        self._stop_asked.ring("stop")
        self._loop.post(self._on_stop)

    def kill(self) -> None:
        """End everything at once, finishing nothing. Safe in a signal handler. `wait` then raises `StopForced`."""
        self._kill_asked.ring("kill")
        self._stop_asked.ring("kill")
        self._loop.post(self._on_kill)

    def stop(self) -> Snapshot:
        """Stop in good order and return when nothing is left running."""
        self.request_stop()
        return self.wait()

    def wait(self, seconds: float | None = None) -> Snapshot:
        """Wait until the engine is done, at most so long, and return how things stand.

        Raises what ended it: `ShardsFailed`, `EngineLost`, `StopForced`, or whatever kept Spark from starting.
        """
        if self._state is EngineState.NEW:
            raise EngineProblem("the engine was not started")
        if self._done.wait(seconds) and self._error is not None:
            raise self._error
        return self.snapshot()

    @property
    def done(self) -> bool:
        """Whether everything has ended."""
        return self._done.is_set()

    def silent_seconds(self) -> float:
        """Return for how long the thread that supervises the shards has owed an answer, and ask it. Never waits."""
        if self.done or self._state is EngineState.NEW:
            return 0.0
        now, since = time.monotonic(), self._owed_since
        if since is None:
            self._owed_since = since = now
            self._loop.post(self._on_asked)
        return now - since

    def snapshot(self) -> Snapshot:
        """Return how things stand. Never waits, and works in every state."""
        now = time.monotonic()
        return Snapshot(
            pipeline=self.pipeline.name,
            state=self._state,
            error=str(self._error) if self._error is not None else None,
            master=self._session.master if self._session is not None else None,
            shards=tuple(station.snapshot(now) for station in self._floor.stations),
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
            # What the body raised says more; without it, this is the only one to tell.
            if kind is None:
                raise

    # The loop's thread

    def _on_time(self, now: float) -> float | None:
        due = self._floor.on_time(now)
        if self._session is not None and not self._closing:
            if self._floor.over:
                self._close()
            elif self._stop_by is not None and now >= self._stop_by:
                self._end_by_force(EngineLost("Spark did not answer, so its shards did not end in good order"))
            elif self._stop_by is not None:
                due = self._stop_by if due is None else min(due, self._stop_by)
        return due

    def _on_opened(self, session: Session) -> None:
        self._session = session
        try:
            self._floor.listen(session, self._options.line_port)
        except OSError as error:
            where = f"{session.bind}:{self._options.line_port}"
            self._fail(SparkFailed(f"the shards' lines cannot be listened for on {where}: {error}"))
            self._on_stop()
            return
        if self._stop_asked.rung:
            self._on_stop()
            return
        self._state = EngineState.RUNNING
        self._floor.begin()

    def _on_asked(self) -> None:
        self._owed_since = None

    def _on_stop(self) -> None:
        if self._state in {EngineState.STARTING, EngineState.RUNNING}:
            self._state = EngineState.STOPPING
        if self._session is not None and self._stop_by is None:
            self._stop_by = time.monotonic() + self.pipeline.policy.grace_seconds + _STOP_MARGIN_SECONDS
            self._floor.stop()

    def _on_kill(self) -> None:
        if self._closing:
            # Nothing is left to finish: this only saves the wait for a JVM of ours.
            if self._session is not None:
                self._session.kill()
        else:
            self._end_by_force(StopForced("stopped at once: open batches were not finished"))

    def _end_by_force(self, error: ThresherError) -> None:
        self._fail(error)
        self._state = EngineState.STOPPING
        self._floor.end_by_force()

    def _on_gone(self, why: str) -> None:
        self._fail(EngineLost(f"{why}: all shards end; start the program again"))

    def _on_broken(self, error: BaseException) -> None:
        """A bug: rather end than go on without supervision. Shards without a line end themselves."""
        self._error = EngineProblem(f"the engine broke, which is a bug: {type(error).__name__}: {error}")
        try:
            self._floor.close()
        finally:
            self._over.set()

    def _close(self) -> None:
        """All shards are over: let the keeper close the session."""
        self._closing = True
        if failed := self._floor.failed:
            reasons = "; ".join(f"shard {station.shard}: {station.known.last_error}" for station in failed)
            error = ShardsFailed(f"{len(failed)} of {self.pipeline.shards} shards failed for good: {reasons}")
            # The first one's own error, where it could be brought over: whoever runs the engine may know its type.
            error.__cause__ = next((station.failure for station in failed if station.failure is not None), None)
            self._fail(error)
        self._drained.set()
        self._over.set()

    def _finish(self) -> None:
        self._floor.close()
        self._loop.finish()

    def _fail(self, error: ThresherError) -> None:
        """Note why the engine ends: the first reason is the one that counts."""
        if self._error is None:
            self._error = error

    # The other threads

    def _keep(self) -> None:
        """Open the session, close it when all shards are over, and end the rest. Whatever happens, the engine ends."""
        session = None
        try:
            session = self._open()
            if session is not None:
                self._keep_open(session)
        except Exception as error:
            logger.exception("the engine's keeper broke")
            self._fail(EngineLost(f"Spark was lost: {type(error).__name__}: {error}; start the program again"))
        finally:
            self._drained.set()
            if session is not None:
                self._close_session(session)
            self._chores.put(None)
            self._loop.post(self._finish)
            self._loop.join()
            self._end_reports()
            self._state = EngineState.DONE if self._error is None else EngineState.FAILED
            self._done.set()

    def _open(self) -> Session | None:
        """Open a session; None where it failed, or was not wanted any more when it was about to be there."""
        try:
            if self._warm is not None:
                return self._warm.lend(self._stop_asked)
            return open_session(
                self._options, name=self.pipeline.name, shards=self.pipeline.shards, abort=self._stop_asked
            )
        except StopForced as error:
            if self._kill_asked.rung:
                self._fail(error)
        except ThresherError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("Spark could not be started")
            self._fail(SparkFailed(f"Spark could not be started: {type(error).__name__}: {error}"))
        self._floor.never_began()
        return None

    def _keep_open(self, session: Session) -> None:
        hook = self._hook(session)
        threading.Thread(target=self._do_chores, name="engine-chores", daemon=True).start()
        self._loop.post(partial(self._on_opened, session))
        self._over.wait()
        if hook is not None:
            within(_CLOSE_SECONDS, hook.remove, self._kill_asked)

    def _close_session(self, session: Session) -> None:
        try:
            session.close(self._kill_asked)
        except Exception:
            logger.exception("Spark could not be closed in good order")
        self._see_workers_off()

    def _do_chores(self) -> None:
        """Do what may block for as long as a JVM does not answer."""
        while (chore := self._chores.get()) is not None:
            chore()

    def _hook(self, session: Session) -> ShutdownHook | None:
        if not session.submitted:
            return None
        seconds = self.pipeline.policy.grace_seconds + _STOP_MARGIN_SECONDS

        def drain() -> None:
            self.request_stop()
            self._drained.wait(seconds)

        return ShutdownHook(session.context._gateway, drain, seconds=seconds)

    def _see_workers_off(self) -> None:
        """Return when no worker of ours is left on this machine; who does not go is made to."""
        patience = self.pipeline.policy.orphan_seconds + 1.0
        began = time.monotonic()
        while any(worker.alive for worker in self._floor.workers):
            waited = time.monotonic() - began
            if waited > patience or self._kill_asked.rung:
                for worker in self._floor.workers:
                    worker.kill()
            if waited > patience + _CLOSE_SECONDS:
                logger.warning("workers that cannot be killed are left behind: %s", self._floor.workers)
                return
            time.sleep(0.01)

    def _report(self, shard: int, name: str, fields: dict[str, Any]) -> None:
        if self._observer is not None:
            try:
                self._reports.put_nowait((shard, name, fields))
            except queue.Full:
                self._floor.stations[shard].unobserved += 1

    def _observe(self, observer: Report) -> None:
        while (report := self._reports.get()) is not None:
            try:
                observer(*report)
            except Exception:
                logger.exception("the observer failed on an event")

    def _end_reports(self) -> None:
        """Give the observer a moment for what it has not seen yet."""
        if self._observing is not None:
            with contextlib.suppress(queue.Full):
                self._reports.put(None, timeout=_CLOSE_SECONDS)
            self._observing.join(0 if self._kill_asked.rung else _CLOSE_SECONDS)
