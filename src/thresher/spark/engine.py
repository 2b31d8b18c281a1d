"""Runs a pipeline: one long Spark task per shard, each supervised on its own, until it ends or is told to stop.

1. `start` opens a session, then listens for lines, then launches one job per shard, each from a thread of its own.
2. A failed shard is launched again after a back-off; its neighbours are not touched. See `supervision`.
3. `stop` lets every shard finish its open batch, ends those that do not, and closes the session.
4. `kill` ends everything at once.
5. When Spark itself goes, the shards are told to end and the engine has failed; it is not rebuilt, because whoever
   starts the program knows better when to start it again.

All state is changed in the loop's thread; the other threads only wait for Spark.
"""

import logging
import queue
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from thresher.core.errors import ThresherError
from thresher.spark.bell import Bell
from thresher.spark.exchange import Caller, Exchange, Introduction
from thresher.spark.job import cancel_job, run_job
from thresher.spark.loop import Loop
from thresher.spark.outcome import Gone, Lost, Outcome, Transient
from thresher.spark.pipeline import Pipeline
from thresher.spark.problem import EngineLost, EngineProblem, ShardsFailed, SparkFailed, StopForced
from thresher.spark.process import Process
from thresher.spark.session import Session, open_session
from thresher.spark.settings import SparkOptions
from thresher.spark.snapshot import EngineState, Snapshot
from thresher.spark.spec import Address, Parcel, Spec
from thresher.spark.station import Station
from thresher.spark.submit import ShutdownHook
from thresher.spark.supervision import (
    AskStop,
    Begin,
    Command,
    End,
    Ended,
    Event,
    HangUp,
    Heard,
    Hello,
    HungUp,
    KillAsked,
    Launch,
    Phase,
    Refuse,
    StopAsked,
    Supervision,
    Tick,
    Welcome,
    decide,
    next_look,
)
from thresher.spark.wire import Frame

logger = logging.getLogger(__name__)

Observer = Callable[[int, str, dict[str, Any]], None]


# What a stop may take beyond the shards' grace before everything is ended by force.
_STOP_MARGIN_SECONDS = 20.0


class Engine:
    """One run of one pipeline. A context manager: entering starts, leaving stops.

    The observer is called with shard, name and fields of every event that a pipeline reports, in a thread of its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        spark: SparkOptions | None = None,
        observer: Observer | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.pipeline = pipeline
        self._options = spark or SparkOptions()
        self._observer = observer
        self._draw = draw
        self._run = secrets.token_hex(4)
        self._stations = [Station(shard) for shard in range(pipeline.shards)]
        self._state = EngineState.NEW
        self._error: ThresherError | None = None
        self._session: Session | None = None
        self._exchange: Exchange | None = None
        self._loop = Loop("engine", self._on_time, self._on_broken)
        self._beat_at = 0.0
        self._stop_by: float | None = None
        self._stop_asked, self._kill_asked = Bell(), Bell()
        self._closing = False
        # Workers on this machine that may outlive their jobs by a moment.
        self._workers: set[Process] = set()
        self._drained, self._done = threading.Event(), threading.Event()
        self._chores: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[tuple[int, str, dict[str, Any]] | None] = queue.SimpleQueue()

    # What others may ask

    def start(self) -> None:
        """Begin, and return at once. What goes wrong from here on shows in the snapshot and is raised by `wait`."""
        if self._state is not EngineState.NEW:
            raise EngineProblem("an engine runs once: make another")
        self._state = EngineState.STARTING
        self._loop.start()
        threading.Thread(target=self._keep, name="engine-keeper", daemon=True).start()
        if self._observer is not None:
            threading.Thread(target=self._observe, args=(self._observer,), name="engine-observer", daemon=True).start()

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

    def snapshot(self) -> Snapshot:
        """Return how things stand. Never waits, and works in every state."""
        now = time.monotonic()
        return Snapshot(
            pipeline=self.pipeline.name,
            state=self._state,
            error=str(self._error) if self._error is not None else None,
            master=self._session.master if self._session is not None else None,
            shards=tuple(station.snapshot(now) for station in self._stations),
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
        policy = self.pipeline.policy
        if self._exchange is not None and now >= self._beat_at:
            self._exchange.beat()
            self._beat_at = now + policy.beat_seconds
        for station in self._stations:
            due = next_look(station.known, policy)
            if due is not None and now >= due:
                self._handle(station, Tick())
        if self._session is not None and not self._closing:
            if all(station.known.phase.over for station in self._stations):
                self._close()
            elif self._stop_by is not None and now >= self._stop_by:
                self._end_by_force(EngineLost("Spark did not end the shards in time, and was ended itself"))
        times = [next_look(station.known, policy) for station in self._stations]
        times.append(self._beat_at if self._exchange is not None else None)
        times.append(self._stop_by if not self._closing else None)
        return min((each for each in times if each is not None), default=None)

    def _on_broken(self, error: BaseException) -> None:
        """A bug: rather end than go on without supervision. Shards without a line end themselves."""
        self._error = EngineProblem(f"the engine broke, which is a bug: {type(error).__name__}: {error}")
        for station in self._stations:
            station.work.put(None)
        if self._exchange is not None:
            self._exchange.close()
        self._chores.put(None)

    def _on_opened(self, session: Session) -> None:
        self._session = session
        try:
            self._exchange = Exchange(
                self._loop,
                self,
                bind=session.bind,
                advertise=session.host,
                port=self._options.line_port,
                token=secrets.token_hex(32),
            )
        except OSError as error:
            where = f"{session.bind}:{self._options.line_port}"
            self._fail(SparkFailed(f"the shards' lines cannot be listened for on {where}: {error}"))
            self._on_stop()
            return
        if self._stop_asked.rung:
            self._on_stop()
            return
        self._state = EngineState.RUNNING
        for station in self._stations:
            address = self._exchange.address
            threading.Thread(
                target=self._supervise, args=(station, session, address), name=f"shard-{station.shard}", daemon=True
            ).start()
            self._handle(station, Begin())

    def _on_stop(self) -> None:
        if self._state in {EngineState.STARTING, EngineState.RUNNING}:
            self._state = EngineState.STOPPING
        if self._session is not None and self._stop_by is None:
            self._stop_by = time.monotonic() + self.pipeline.policy.grace_seconds + _STOP_MARGIN_SECONDS
            for station in self._stations:
                self._handle(station, StopAsked())

    def _on_kill(self) -> None:
        self._end_by_force(StopForced("stopped at once: open batches were not finished"))

    def _end_by_force(self, error: ThresherError) -> None:
        self._fail(error)
        self._state = EngineState.STOPPING
        for station in self._stations:
            self._handle(station, KillAsked())
        if self._session is not None:
            # First, because whatever waits for a JVM of ours waits no longer when it is gone.
            self._session.kill()
        for station in self._stations:
            if not station.known.phase.over:
                # Spark will not say any more, or nobody will be there to hear it.
                self._handle(station, Ended(attempt=station.known.attempt, outcome=Lost(why="ended by force")))

    def _on_ended(self, station: Station, attempt: int, outcome: Outcome) -> None:
        if isinstance(outcome, Lost) and station.last_words is not None:
            outcome = Transient(trouble=station.last_words)
        if not isinstance(outcome, Gone):
            self._handle(station, Ended(attempt=attempt, outcome=outcome))
            return
        self._fail(EngineLost(f"{outcome.why}: all shards end; start the program again"))
        # The others' jobs went with it, whether their threads have noticed or not.
        for each in self._stations:
            self._handle(each, Ended(attempt=each.known.attempt, outcome=outcome))
            self._handle(each, StopAsked())

    def _close(self) -> None:
        """All shards are over: let the keeper close the session."""
        self._closing = True
        failed = [station for station in self._stations if station.known.phase is Phase.FAILED]
        if failed:
            reasons = "; ".join(f"shard {station.shard}: {station.known.last_error}" for station in failed)
            self._fail(ShardsFailed(f"{len(failed)} of {len(self._stations)} shards failed for good: {reasons}"))
        self._drained.set()
        self._chores.put(None)

    def _finish(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        self._loop.finish()

    def _handle(self, station: Station, event: Event, caller: Caller | None = None) -> None:
        """Decide and do."""
        before = station.known.phase
        station.known, commands = decide(
            station.known, event, now=time.monotonic(), policy=self.pipeline.policy, draw=self._draw
        )
        for command in commands:
            self._do(station, command, caller)
        if station.known.phase is not before:
            self._log(station)
            if station.known.phase.over:
                station.work.put(None)

    def _do(self, station: Station, command: Command, caller: Caller | None) -> None:
        match command:
            case Launch(attempt=attempt):
                station.work.put(attempt)
            case Welcome() if caller is not None:
                self._hang_up(station)
                station.seat(caller)
                caller.welcome()
                self._note_worker(station)
            case Refuse() if caller is not None:
                caller.refuse("replaced")
            case AskStop(grace_seconds=grace):
                if station.caller is not None:
                    station.caller.send({"is": "stop", "grace": grace})
            case HangUp():
                self._hang_up(station)
            case End(attempt=attempt):
                self._end(station, attempt)
            case _:
                raise AssertionError(command)

    def _hang_up(self, station: Station) -> None:
        caller = station.unseat()
        if caller is None:
            return
        if isinstance(self._error, EngineLost):
            # Nobody will replace it: it may finish what it has begun.
            caller.send({"is": "stop", "grace": self.pipeline.policy.orphan_seconds})
        else:
            caller.kill()

    def _end(self, station: Station, attempt: int) -> None:
        session, introduction = self._session, station.introduction
        if session is None:
            return
        if session.local and station.known.task is not None and introduction is not None:
            introduction.process.kill()
        else:
            group = self._group(station, attempt)
            self._chores.put(lambda: cancel_job(session.context, group))

    def _note_worker(self, station: Station) -> None:
        if self._session is not None and self._session.local and station.introduction is not None:
            self._workers = {worker for worker in self._workers if worker.alive} | {station.introduction.process}

    def _fail(self, error: ThresherError) -> None:
        """Note why the engine ends: the first reason is the one that counts."""
        if self._error is None:
            self._error = error

    def _log(self, station: Station) -> None:
        known = station.known
        bad = known.phase in {Phase.BACKING_OFF, Phase.FAILED}
        logger.log(
            logging.WARNING if bad else logging.INFO,
            "shard %d of %s is %s%s",
            station.shard,
            self.pipeline.name,
            known.phase,
            f": {known.last_error}" if bad else "",
            extra={"shard": station.shard, "attempt": known.attempt, "phase": str(known.phase)},
        )

    # The desk: what callers say, in the loop's thread

    def on_hello(self, caller: Caller, introduction: Introduction) -> None:
        """Let the supervision of its shard decide."""
        if not 0 <= introduction.shard < len(self._stations):
            caller.refuse("there is no such shard")
            return
        hello = Hello(attempt=introduction.attempt, task=introduction.task)
        self._handle(self._stations[introduction.shard], hello, caller)

    def on_frame(self, caller: Caller, introduction: Introduction, frame: Frame) -> None:
        """Take figures, events and last words of whoever is on its shard's line."""
        station = self._stations[introduction.shard]
        if station.caller is not caller:
            return
        self._handle(station, Heard(task=introduction.task))
        station.take(frame)
        if frame.get("is") == "event" and self._observer is not None:
            self._reports.put((station.shard, str(frame["name"]), frame["fields"]))

    def on_hang_up(self, caller: Caller, introduction: Introduction) -> None:
        """Note that the line is gone."""
        station = self._stations[introduction.shard]
        if station.caller is caller:
            station.unseat()
            self._handle(station, HungUp(task=introduction.task))

    # The other threads

    def _supervise(self, station: Station, session: Session, address: Address) -> None:
        """Run the attempts of one shard, one after another, as they are handed over."""
        while (attempt := station.work.get()) is not None:
            spec = Spec(
                pipeline=self.pipeline.name,
                shard=station.shard,
                shards=self.pipeline.shards,
                attempt=attempt,
                steps=self.pipeline.steps,
                policy=self.pipeline.policy,
                address=address,
                path=tuple(sys.path) if session.local else (),
            )
            description = f"{self.pipeline.name}: shard {station.shard}, attempt {attempt}"
            outcome = run_job(session.context, self._group(station, attempt), description, Parcel.of(spec))
            self._loop.post(partial(self._on_ended, station, attempt, outcome))

    def _group(self, station: Station, attempt: int) -> str:
        return f"thresher-{self.pipeline.name}-{self._run}-{station.shard}-{attempt}"

    def _keep(self) -> None:
        """Open the session, do what must not hold the loop up, close the session, and end the loop."""
        session = self._open()
        if session is not None:
            hook = self._hook(session)
            self._loop.post(partial(self._on_opened, session))
            while (chore := self._chores.get()) is not None:
                chore()
            if hook is not None:
                hook.remove()
            session.close(self._kill_asked)
            self._see_workers_off()
        self._drained.set()
        self._reports.put(None)
        self._loop.post(self._finish)
        self._loop.join()
        self._state = EngineState.DONE if self._error is None else EngineState.FAILED
        self._done.set()

    def _open(self) -> Session | None:
        """Open a session; None where it failed, or was not wanted any more when it was about to be there."""
        try:
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
        for station in self._stations:
            station.known = Supervision(phase=Phase.STOPPED)
        return None

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
        deadline = time.monotonic() + self.pipeline.policy.orphan_seconds + 1.0
        while any(worker.alive for worker in self._workers):
            if time.monotonic() > deadline or self._kill_asked.rung:
                for worker in self._workers:
                    worker.kill()
            time.sleep(0.01)

    def _observe(self, observer: Observer) -> None:
        while (report := self._reports.get()) is not None:
            try:
                observer(*report)
            except Exception:
                logger.exception("the observer failed on an event")
