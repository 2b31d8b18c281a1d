"""Supervises all shards of one engine, in the event loop's thread.

1. An event of a shard (a hello, a frame, an ended job, a deadline, a stop) goes to `supervision.decide`.
2. The commands that it returns are carried out: on the shard's line, its Spark job, or its process.
3. The loss of Spark ends all shards. Their tasks may finish their open batch, because no other task will follow.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from thresher.spark.driver.event_loop import EventLoop
from thresher.spark.driver.line_server import LinePlace, LineServer
from thresher.spark.driver.local_workers import LocalWorkers
from thresher.spark.driver.observer import ObserverThread
from thresher.spark.driver.shard_jobs import ShardJobs
from thresher.spark.driver.shard_record import ShardRecord
from thresher.spark.driver.snapshot import slot_needed
from thresher.spark.driver.spark_job import Counts
from thresher.spark.driver.supervision import (
    AttemptEnded,
    CloseLine,
    Command,
    Event,
    ForceEnd,
    FrameReceived,
    Hello,
    KillRequested,
    Launch,
    LineClosed,
    Phase,
    Refuse,
    SendStop,
    ShardState,
    StartRequested,
    StopRequested,
    Tick,
    Welcome,
    decide,
    next_deadline,
)
from thresher.spark.driver.task_connection import TaskConnection, TaskIdentity
from thresher.spark.frame_socket import Frame
from thresher.spark.line_key import LineKey
from thresher.spark.outcome import Fatal, Outcome, SparkLost, TaskLost, Transient
from thresher.spark.pipeline import Pipeline
from thresher.spark.session.session import Session

logger = logging.getLogger(__name__)


class ShardSupervisor:
    """The shards, their lines and their jobs. `on_spark_lost` is called once, when Spark is lost."""

    def __init__(
        self,
        pipeline: Pipeline,
        loop: EventLoop,
        observer: ObserverThread,
        *,
        draw: Callable[[], float],
        on_spark_lost: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._policy = pipeline.policy
        self._loop = loop
        self._observer = observer
        self._draw = draw
        self._on_spark_lost = on_spark_lost
        self._session: Session | None = None
        # The tasks' lines; None before `listen`.
        self.line_server: LineServer | None = None
        self._jobs: ShardJobs | None = None
        self._beat_at = 0.0
        self._spark_lost = False
        self.records = [ShardRecord(shard) for shard in range(pipeline.shards)]
        self.workers = LocalWorkers()

    @property
    def over(self) -> bool:
        """Whether every shard is in a final phase."""
        return all(record.state.phase.over for record in self.records)

    @property
    def failed(self) -> list[ShardRecord]:
        """The shards that failed for good."""
        return [record for record in self.records if record.state.phase is Phase.FAILED]

    def listen(self, session: Session, port: int) -> None:
        """Start the line server. Raises `OSError` if the port cannot be bound."""
        self._session = session
        place = LinePlace(
            directory=session.directory,
            bind=session.bind,
            advertise=session.host,
            port=port,
            certificate=session.certificate,
        )
        self.line_server = LineServer(self._loop, self, place=place, key=LineKey.make())

    def start(self) -> None:
        """Launch every shard. Call `listen` first."""
        if self._session is None or self.line_server is None:
            raise RuntimeError("listen first")
        self._jobs = ShardJobs(self._pipeline, self._session, self.line_server.address, self._post_ended)
        self._jobs.start()
        for record in self.records:
            self._handle(record, StartRequested())

    def stop(self) -> None:
        """Stop every shard gracefully."""
        for record in self.records:
            self._handle(record, StopRequested())

    def kill(self) -> None:
        """Kill every shard, and the JVM if we started it. Afterwards every shard is over."""
        for record in self.records:
            self._handle(record, KillRequested())
        if self._session is not None:
            # The threads of `shard_jobs`, which wait for the JVM, return when it is gone.
            self._session.kill()
        for record in self.records:
            # Spark may never report the ends of these attempts, so nothing waits for the reports.
            self._handle(record, AttemptEnded(attempt=record.state.attempt, outcome=TaskLost(why="ended by force")))

    def on_time(self, now: float) -> float | None:
        """Send heartbeats and handle deadlines that are due; return the next deadline."""
        if self.line_server is not None and now >= self._beat_at:
            self.line_server.beat()
            self._beat_at = now + self._policy.beat_seconds
        for record in self.records:
            due = next_deadline(record.state, self._policy)
            if due is not None and now >= due:
                self._handle(record, Tick(), now=now)
        times = [next_deadline(record.state, self._policy) for record in self.records]
        times.append(self._beat_at if self.line_server is not None else None)
        return min((each for each in times if each is not None), default=None)

    def close(self) -> None:
        """Close all lines and let the jobs' threads end."""
        if self.line_server is not None:
            self.line_server.close()
        if self._jobs is not None:
            self._jobs.close()

    def never_started(self) -> None:
        """Mark every shard as stopped, because Spark did not start. For any thread, instead of `listen`."""
        for record in self.records:
            record.state = ShardState(phase=Phase.STOPPED)

    def on_hello(self, connection: TaskConnection, identity: TaskIdentity) -> None:
        """Let the shard's supervision welcome or refuse the task."""
        if not 0 <= identity.shard < len(self.records):
            connection.refuse("there is no such shard")
            return
        hello = Hello(attempt=identity.attempt, task=identity.task)
        self._handle(self.records[identity.shard], hello, connection)

    def on_frame(self, connection: TaskConnection, identity: TaskIdentity, frame: Frame) -> None:
        """Take a frame of the shard's connected task: figures, an event, or the reason why it ends its own process."""
        record = self.records[identity.shard]
        if record.connection is not connection:
            return
        self._handle(record, FrameReceived(task=identity.task))
        record.take(frame)
        if frame.get("is") == "event" and not self._observer.put(record.shard, str(frame["name"]), frame["fields"]):
            record.unobserved += 1

    def on_line_closed(self, connection: TaskConnection, identity: TaskIdentity) -> None:
        """Note that the shard's connected task has lost its line."""
        record = self.records[identity.shard]
        if record.connection is connection:
            record.disconnect()
            self._handle(record, LineClosed(task=identity.task))

    def _post_ended(self, shard: int, attempt: int, outcome: Outcome, counts: Counts | None) -> None:
        """Pass the end of an attempt from its shard's thread to the event loop."""
        self._loop.post(partial(self._on_ended, self.records[shard], attempt, outcome, counts))

    def _on_ended(self, record: ShardRecord, attempt: int, outcome: Outcome, counts: Counts | None) -> None:
        if attempt != record.state.attempt:
            return
        if record.connection is not None and self.line_server is not None:
            # The task's last frames were sent before its outcome, and may still be unread.
            self.line_server.read_all(record.connection)
        if counts is not None:
            record.take_final_counts(counts)
        if isinstance(outcome, TaskLost) and record.last_words is not None:
            outcome = Transient(error=record.last_words)
        if isinstance(outcome, Fatal):
            record.failure = outcome.error.exception
        if not isinstance(outcome, SparkLost):
            self._handle(record, AttemptEnded(attempt=attempt, outcome=outcome))
        elif not self._spark_lost:
            self._spark_lost = True
            self._on_spark_lost(outcome.why)
            # The other shards' jobs were lost with Spark, even if their threads have not noticed yet.
            for each in self.records:
                self._handle(each, AttemptEnded(attempt=each.state.attempt, outcome=outcome))
                self._handle(each, StopRequested())

    def _handle(
        self, record: ShardRecord, event: Event, connection: TaskConnection | None = None, *, now: float | None = None
    ) -> None:
        """Decide about an event and carry out the commands. For a tick, `now` is the time that found it due."""
        before = record.state.phase
        now = time.monotonic() if now is None else now
        record.state, commands = decide(record.state, event, now=now, policy=self._policy, draw=self._draw)
        for command in commands:
            self._do(record, command, connection)
        if record.state.phase is not before:
            needed = slot_needed(len(self.records), None if self._session is None else self._session.master)
            _log_phase(self._pipeline.name, record, needed)
            if record.state.phase.over and self._jobs is not None:
                self._jobs.end(record.shard)

    def _do(self, record: ShardRecord, command: Command, connection: TaskConnection | None) -> None:
        match command:
            case Launch(attempt=attempt) if self._jobs is not None:
                record.last_words = None
                self._jobs.launch(record.shard, attempt)
            case Welcome() if connection is not None:
                self._close_line(record)
                record.connect(connection)
                connection.welcome()
                self._remember_worker(record)
            case Refuse() if connection is not None:
                connection.refuse("replaced")
            case SendStop(grace_seconds=grace):
                if record.connection is not None:
                    record.connection.send({"is": "stop", "grace": grace})
            case CloseLine():
                self._close_line(record)
            case ForceEnd(attempt=attempt) if self._jobs is not None:
                self._force_end(record, attempt, self._jobs)
            case _:
                raise AssertionError(command)

    def _close_line(self, record: ShardRecord) -> None:
        connection = record.disconnect()
        if connection is None:
            return
        if self._spark_lost:
            # No task will replace it, so it may finish its open batch.
            connection.send({"is": "stop", "grace": self._policy.orphan_seconds})
        else:
            connection.kill()

    def _force_end(self, record: ShardRecord, attempt: int, jobs: ShardJobs) -> None:
        local = self._session is not None and self._session.local
        if local and record.identity is not None and record.identity.attempt == attempt:
            record.identity.process.kill()
        # A forked child may hold the killed task's connections open, so that Spark does not notice its end.
        jobs.cancel(record.shard, attempt)

    def _remember_worker(self, record: ShardRecord) -> None:
        if self._session is not None and self._session.local and record.identity is not None:
            # If we started the JVM, the daemon that forked the worker is ours as well.
            self.workers.add(record.identity.process, record.identity.parent if self._session.owns_jvm else None)


def _log_phase(pipeline: str, record: ShardRecord, slot_needed: str) -> None:
    """Log a new phase. A shard that fails or waits repeatedly for the same reason is logged once."""
    state = record.state
    waits = state.phase is Phase.WAITING
    bad = waits or state.phase in {Phase.BACKING_OFF, Phase.FAILED}
    why = slot_needed if waits else state.last_error
    again = state.failures > (not waits) and why == record.logged_error if bad else state.failures > 0
    if bad:
        record.logged_error = why
    logger.log(
        logging.DEBUG if again and not state.phase.over else logging.WARNING if bad else logging.INFO,
        "shard %d of %s is %s%s",
        record.shard,
        pipeline,
        state.phase,
        f": {why}" if bad else "",
        extra={"shard": record.shard, "attempt": state.attempt, "phase": str(state.phase)},
    )
