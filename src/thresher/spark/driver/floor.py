"""All shards of one engine, as the driver's loop holds them: events come in, decisions are made and done.

Everything here runs in the loop's thread, except for the shards' own threads, which only wait for Spark.
"""

import logging
import pickle
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from thresher.spark.driver.job import Counts, cancel_job, run_job
from thresher.spark.driver.line_server import Caller, Exchange, Introduction
from thresher.spark.driver.loop import Loop
from thresher.spark.driver.station import Station
from thresher.spark.driver.supervision import (
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
from thresher.spark.outcome import Fatal, Gone, Lost, Outcome, Transient, outcome_of
from thresher.spark.pipeline import Pipeline
from thresher.spark.process import Process
from thresher.spark.session.session import Session
from thresher.spark.spec import Address, Parcel, Spec
from thresher.spark.wire import Frame

logger = logging.getLogger(__name__)

# Called with shard, name and fields of an event.
Report = Callable[[int, str, dict[str, Any]], None]
Chore = Callable[[], None]


class Floor:
    """The shards, their lines and their threads.

    `report` takes events, `elsewhere` a chore that may block, `on_gone` is called once when Spark has gone.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        loop: Loop,
        *,
        draw: Callable[[], float],
        report: Report,
        elsewhere: Callable[[Chore], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._policy = pipeline.policy
        self._loop = loop
        self._draw = draw
        self._report = report
        self._elsewhere = elsewhere
        self._on_gone = on_gone
        self._run = secrets.token_hex(4)
        self._session: Session | None = None
        self._exchange: Exchange | None = None
        self._beat_at = 0.0
        self._gone = False
        self.stations = [Station(shard) for shard in range(pipeline.shards)]
        # Workers on this machine that may outlive their jobs by a moment.
        self.workers: set[Process] = set()

    @property
    def over(self) -> bool:
        """Whether nothing will happen to any shard any more."""
        return all(station.known.phase.over for station in self.stations)

    @property
    def failed(self) -> list[Station]:
        """The shards that failed for good."""
        return [station for station in self.stations if station.known.phase is Phase.FAILED]

    def listen(self, session: Session, port: int) -> None:
        """Listen for the shards' lines. Raises `OSError` where that is not possible."""
        self._session = session
        self._exchange = Exchange(
            self._loop, self, bind=session.bind, advertise=session.host, port=port, token=secrets.token_hex(32)
        )

    def begin(self) -> None:
        """Start every shard's thread, and launch every shard."""
        if self._session is None or self._exchange is None:
            raise RuntimeError("listen first")
        for station in self.stations:
            arguments = (station, self._session, self._exchange.address)
            name = f"shard-{station.shard}"
            threading.Thread(target=self._supervise, args=arguments, name=name, daemon=True).start()
            self._handle(station, Begin())

    def stop(self) -> None:
        """Stop every shard in good order."""
        for station in self.stations:
            self._handle(station, StopAsked())

    def end_by_force(self) -> None:
        """End every shard and what is ours of Spark; afterwards all are over."""
        for station in self.stations:
            self._handle(station, KillAsked())
        if self._session is not None:
            # Whatever waits for a JVM of ours waits no longer when it is gone.
            self._session.kill()
        for station in self.stations:
            # Spark will not say any more, or nobody will be there to hear it.
            self._handle(station, Ended(attempt=station.known.attempt, outcome=Lost(why="ended by force")))

    def on_time(self, now: float) -> float | None:
        """Do what is due, and return when there may be something again."""
        if self._exchange is not None and now >= self._beat_at:
            self._exchange.beat()
            self._beat_at = now + self._policy.beat_seconds
        for station in self.stations:
            due = next_look(station.known, self._policy)
            if due is not None and now >= due:
                self._handle(station, Tick(), now=now)
        times = [next_look(station.known, self._policy) for station in self.stations]
        times.append(self._beat_at if self._exchange is not None else None)
        return min((each for each in times if each is not None), default=None)

    def close(self) -> None:
        """Hang up on everybody, listen no more, and let the shards' threads go."""
        if self._exchange is not None:
            self._exchange.close()
        for station in self.stations:
            station.work.put(None)

    def never_began(self) -> None:
        """There is no Spark to run on: every shard is over before it began. For any thread, before `listen`."""
        for station in self.stations:
            station.known = Supervision(phase=Phase.STOPPED)

    # Deciding and doing

    def _on_ended(self, station: Station, attempt: int, outcome: Outcome, counts: Counts | None) -> None:
        if attempt != station.known.attempt:
            return
        if station.caller is not None and self._exchange is not None:
            # What it said last arrived before its outcome did, or is about to.
            self._exchange.hear_out(station.caller)
        if counts is not None:
            station.settle(counts)
        if isinstance(outcome, Lost) and station.last_words is not None:
            outcome = Transient(trouble=station.last_words)
        if isinstance(outcome, Fatal):
            station.failure = outcome.trouble.error
        if not isinstance(outcome, Gone):
            self._handle(station, Ended(attempt=attempt, outcome=outcome))
        elif not self._gone:
            self._gone = True
            self._on_gone(outcome.why)
            # The others' jobs went with it, whether their threads have noticed or not.
            for each in self.stations:
                self._handle(each, Ended(attempt=each.known.attempt, outcome=outcome))
                self._handle(each, StopAsked())

    def _handle(
        self, station: Station, event: Event, caller: Caller | None = None, *, now: float | None = None
    ) -> None:
        """Decide and do. What is due is due by the time that was read before the last look at the lines."""
        before = station.known.phase
        now = time.monotonic() if now is None else now
        station.known, commands = decide(station.known, event, now=now, policy=self._policy, draw=self._draw)
        for command in commands:
            self._do(station, command, caller)
        if station.known.phase is not before:
            self._log(station)
            if station.known.phase.over:
                station.work.put(None)

    def _do(self, station: Station, command: Command, caller: Caller | None) -> None:
        match command:
            case Launch(attempt=attempt):
                station.last_words = None
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
        if self._gone:
            # Nobody will replace it: it may finish what it has begun.
            caller.send({"is": "stop", "grace": self._policy.orphan_seconds})
        else:
            caller.kill()

    def _end(self, station: Station, attempt: int) -> None:
        session, introduction = self._session, station.introduction
        if session is None:
            return
        if session.local and introduction is not None and introduction.attempt == attempt:
            introduction.process.kill()
        # Both: a child that it forked may hold its connections, so that Spark does not see its end.
        group = self._group(station, attempt)
        self._elsewhere(lambda: cancel_job(session.context, group))

    def _note_worker(self, station: Station) -> None:
        session, introduction = self._session, station.introduction
        if session is not None and session.local and introduction is not None:
            # With a JVM of ours, the daemon that forked the worker is ours as well.
            known = {introduction.process, introduction.parent if session.ours else None} - {None}
            self.workers = {worker for worker in self.workers | known if worker is not None and worker.alive}

    def _log(self, station: Station) -> None:
        """Say it once for each change: a shard that fails again and again for one reason is told of once."""
        known = station.known
        bad = known.phase in {Phase.BACKING_OFF, Phase.FAILED}
        again = known.failures > 1 and known.last_error == station.told if bad else known.failures > 0
        if bad:
            station.told = known.last_error
        logger.log(
            logging.DEBUG if again and not known.phase.over else logging.WARNING if bad else logging.INFO,
            "shard %d of %s is %s%s",
            station.shard,
            self._pipeline.name,
            known.phase,
            f": {known.last_error}" if bad else "",
            extra={"shard": station.shard, "attempt": known.attempt, "phase": str(known.phase)},
        )

    # The desk: what callers say

    def on_hello(self, caller: Caller, introduction: Introduction) -> None:
        """Let the supervision of its shard decide."""
        if not 0 <= introduction.shard < len(self.stations):
            caller.refuse("there is no such shard")
            return
        hello = Hello(attempt=introduction.attempt, task=introduction.task)
        self._handle(self.stations[introduction.shard], hello, caller)

    def on_frame(self, caller: Caller, introduction: Introduction, frame: Frame) -> None:
        """Take figures, events and last words of whoever is on its shard's line."""
        station = self.stations[introduction.shard]
        if station.caller is not caller:
            return
        self._handle(station, Heard(task=introduction.task))
        station.take(frame)
        if frame.get("is") == "event":
            self._report(station.shard, str(frame["name"]), frame["fields"])

    def on_hang_up(self, caller: Caller, introduction: Introduction) -> None:
        """Note that the line is gone."""
        station = self.stations[introduction.shard]
        if station.caller is caller:
            station.unseat()
            self._handle(station, HungUp(task=introduction.task))

    # The shards' threads

    def _supervise(self, station: Station, session: Session, address: Address) -> None:
        """Run the attempts of one shard, one after another, as they are handed over."""
        while (attempt := station.work.get()) is not None:
            counts = None
            try:
                outcome, counts = self._run_attempt(station, session, address, attempt)
            except Exception as error:
                logger.exception("an attempt could not be made")
                outcome = outcome_of(error)
            self._loop.post(partial(self._on_ended, station, attempt, outcome, counts))

    def _run_attempt(
        self, station: Station, session: Session, address: Address, attempt: int
    ) -> tuple[Outcome, Counts | None]:
        spec = Spec(
            pipeline=self._pipeline.name,
            shard=station.shard,
            shards=self._pipeline.shards,
            attempt=attempt,
            steps=pickle.dumps(self._pipeline.steps),
            policy=self._policy,
            address=address,
            path=tuple(sys.path) if session.local else (),
        )
        description = f"{self._pipeline.name}: shard {station.shard}, attempt {attempt}"
        return run_job(session.context, self._group(station, attempt), description, Parcel.of(spec))

    def _group(self, station: Station, attempt: int) -> str:
        return f"thresher-{self._pipeline.name}-{self._run}-{station.shard}-{attempt}"
