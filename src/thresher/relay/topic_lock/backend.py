"""Runs a relay with topic locks in threads of any Python process: no Spark, no Java.

Each worker thread does the work of one Spark task. One more thread joins the group, watches it, and starts the workers
again after trouble. It ends when asked to stop, or after an error that a retry cannot help: then the log has a line at
level CRITICAL, `alarms` has the reason, and `wait` and `stop` raise the error.
"""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from thresher.core.errors import Superseded, ThresherError, Trouble
from thresher.observe.figure_sink import Number, summed
from thresher.relay.settings import Coordination, Settings, ShardAssignment
from thresher.relay.topic_lock.joining import join
from thresher.relay.topic_lock.worker import Worker
from thresher.relay.topic_lock.workload import TopicLockTerm
from thresher.service.metrics import stands
from thresher.service.workload import PeriodicCheck
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.shard import Figures, Shard

logger = logging.getLogger(__name__)

# The pause between two checks of the group; the first and the longest pause after trouble.
_LOOK_SECONDS = 0.2
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
# If a worker takes longer to end, the log says so.
_SLOW_SECONDS = 30.0
# The keys of the alarms about the backend itself, and about rows that stand: no topic has these names.
ENDED, STAND = "(relay)", "(rows)"


class DbBackend:
    """The workers of one process. A context manager: entering starts, leaving stops. Safe from any thread."""

    def __init__(self, settings: Settings, *, threads: int = 2, hook: str | None = None) -> None:
        self.settings = replace(settings, coordination=Coordination.TOPIC_LOCK, shards=threads)
        self._hook = hook
        self._stopping = SignalSafeEvent()
        self._ending = SignalSafeEvent()
        self._killed = False
        # The error that ended it.
        self.error: BaseException | None = None
        self._figures = [Figures() for _ in range(threads)]
        self._told: TopicLockTerm | None = None
        self._thread = threading.Thread(target=self._run, name="thresher-db-backend", daemon=True)

    def start(self) -> None:
        """Start the threads. To be called once."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask for an orderly stop: workers finish their batch and free their lock. Safe in a signal handler."""
        self._stopping.set("asked to stop")
        # Told to the workers at once: a check of the group that is under way may take long.
        self._ending.set("asked to stop")

    def stop(self, seconds: float | None = None) -> None:
        """Stop in an orderly way, and wait for the end."""
        self.request_stop()
        self.wait(seconds)

    def kill(self) -> None:
        """End without waiting for the workers: their locks expire. Safe in a signal handler."""
        self._killed = True
        self.request_stop()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end. Raises the error that ended it, if any."""
        self._thread.join(seconds)
        if self.error is not None:
            raise self.error

    @property
    def running(self) -> bool:
        """Whether the backend has not ended."""
        return self._thread.is_alive()

    @property
    def counts(self) -> Mapping[str, Number]:
        """The counters of all workers: `relayed`, `dead`, `turns`, …"""
        return summed([dict(each.counts) for each in self._figures])

    @property
    def alarms(self) -> Mapping[str, str]:
        """Topics whose rows wait, and why. Once an error has ended the backend, it is here under `(relay)`.

        Rows that stand although they may be sent are there under `(rows)`.
        """
        ended = {} if self.error is None else {ENDED: f"has ended, and sends nothing: {self.error}"}
        told = max((text for each in self._figures if (text := stands(each.gauges))), default=None)
        standing = {} if told is None else {STAND: told}
        return {**standing, **ended} if self._told is None else {**self._told.alarms, **standing, **ended}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        wait = _FIRST_WAIT_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._be_member()
            except BaseException as error:  # noqa: BLE001 - raised again by `wait`
                if not self._bears(error):
                    return
            if time.monotonic() - began > _LONGEST_WAIT_SECONDS:
                wait = _FIRST_WAIT_SECONDS
            self._stopping.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def _bears(self, error: BaseException) -> bool:
        """Return whether to join the group again after this error; otherwise keep the error for `wait`."""
        try:
            if isinstance(error, Superseded) and self._told is not None and self._goes_on(self._told):
                logger.warning("%s joins the group again: %s", self.settings.name, error)
                return True
        except ThresherError as refused:
            error = refused
        if isinstance(error, ThresherError) and error.retryable:
            logger.warning("%s waits: %s", self.settings.name, error)
            return True
        self.error = error
        logger.critical(
            "%s has ended, and sends nothing until it is started again: %s",
            self.settings.name,
            error,
            exc_info=None if isinstance(error, ThresherError) else error,
        )
        return False

    def _be_member(self) -> None:
        """Join the group and work for it, until a stop is asked for or an error ends the membership."""
        assignment = join(self.settings, lambda: not self._stopping.is_set())
        if assignment is None:
            return
        term = self._told = TopicLockTerm(assignment.term, replace(assignment, hook=self._hook))
        ending = self._ending = SignalSafeEvent()
        if self._stopping.is_set():
            return
        errors: list[BaseException] = []
        threads = [
            threading.Thread(
                target=self._work,
                args=(number, term, assignment, ending, errors),
                name=f"thresher-worker-{number}",
                daemon=True,
            )
            for number in range(self.settings.shards)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            with term.watch() as checks:
                self._watch(checks, threads, errors)
        finally:
            ending.set("the membership ends")
            for thread in threads:
                self._await(thread)
        if errors:
            raise errors[0]

    def _await(self, thread: threading.Thread) -> None:
        """Wait for a worker to end, unless this backend was killed."""
        told = time.monotonic() + _SLOW_SECONDS
        while thread.is_alive() and not self._killed:
            thread.join(_LOOK_SECONDS)
            if time.monotonic() > told:
                told += _SLOW_SECONDS
                logger.warning("%s of %s has not ended yet: a server does not answer", thread.name, self.settings.name)

    def _watch(self, checks: Any, threads: list[threading.Thread], errors: list[BaseException]) -> None:
        due: dict[PeriodicCheck, float] = {}
        while not self._stopping.wait(_LOOK_SECONDS) and not errors and all(map(threading.Thread.is_alive, threads)):
            for check in checks:
                now = time.monotonic()
                if now < due.get(check, 0.0) or self._stopping.is_set() or errors:
                    continue
                due[check] = now + check.every_seconds
                try:
                    check.run()
                except Trouble as error:
                    logger.warning("%s: %s", check.at, error)

    def _work(
        self,
        number: int,
        term: TopicLockTerm,
        assignment: ShardAssignment,
        ending: SignalSafeEvent,
        errors: list[BaseException],
    ) -> None:
        """Run one worker. In a thread of its own."""
        try:
            with (
                self._shard(number, term, ending) as shard,
                closing(Worker(shard, replace(assignment, hook=self._hook))) as worker,
            ):
                while not shard.stopping:
                    worker.round()
                    shard.wait(assignment.settings.topic_locking.rest_seconds)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that watches
            errors.append(error)

    @contextmanager
    def _shard(self, number: int, term: TopicLockTerm, ending: SignalSafeEvent) -> Any:
        with ExitStack() as resources:
            yield Shard(
                pipeline=self.settings.name,
                index=number,
                shards=self.settings.shards,
                attempt=1,
                stop_requested=ending,
                figures=self._figures[number],
                resources=resources,
                on_event=lambda event, fields: term.observe(number, event, fields),
            )

    def _goes_on(self, term: TopicLockTerm) -> bool:
        while not self._stopping.is_set():
            try:
                return term.taken_back()
            except Trouble:
                self._stopping.wait(_FIRST_WAIT_SECONDS)
        return False
