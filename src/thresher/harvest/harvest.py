"""The relay as a program has it: competes for leadership, relays while it leads, waits while it does not.

1. `start` begins to compete and opens a Spark meanwhile, which stays open: a standby's is there when it has to lead.
2. Whoever acquires leadership runs a relay whose term is the leader id. Nothing touches the outbox before.
3. Leadership that is lost ends the relay at once: a moment to finish what is open if that was in good order, none if
   another one may lead already. Then it competes on.
4. A relay that was superseded although it led resigns, and competes again; without an election, that is the end.
5. `stop` lets the relay finish what is open, then leaves the election, so that a successor need not wait, and only then
   ends Spark.

All of it happens in one thread; everything else asks that thread, or looks at values that are replaced as a whole.
"""

import contextlib
import enum
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from thresher.core.errors import Superseded, ThresherError, shorten
from thresher.delivery.transforms import load
from thresher.election.election import competitor
from thresher.election.leadership import Acquired, Change, Fenced, Leadership, Refreshed, Revoked
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.announcer import Announcer, Handler
from thresher.harvest.event import LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from thresher.harvest.form import check_settings
from thresher.harvest.meter import Meter
from thresher.harvest.problem import HarvestMisused
from thresher.relay.leader.relay import Relay, spark_of
from thresher.relay.settings import Settings
from thresher.service.health import Role
from thresher.service.ledger import Ledger
from thresher.spark.bell import Bell
from thresher.spark.driver.snapshot import Snapshot
from thresher.spark.policy import Policy
from thresher.spark.problem import StopForced
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
# What a relay may take to finish its open batch when its leadership was given to somebody else in good order.
_HAND_OVER_SECONDS = 1.0
_EVENTS_SECONDS = 5.0
# One that is superseded again and again although it is elected competes less and less eagerly.
_FIRST_PENANCE_SECONDS, _LONGEST_PENANCE_SECONDS = 1.0, 60.0
T = TypeVar("T", bound=Handler)


class State(enum.StrEnum):
    """Where a harvest is in its life; it never goes back."""

    CREATED = "Created"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class Harvest:
    """One competitor for one relay. A context manager: entering starts, leaving stops. Safe from any thread.

    `election` says how to compete, or is a `Leadership` of the caller's own. A `logger` gets all that Thresher logs.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        election: ElectionSettings | Leadership | None = None,
        spark: SparkOptions | None = None,
        logger: logging.Logger | None = None,
        metrics_seconds: float = 5.0,
        policy: Policy | None = None,
        hook: str | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(spark, SparkOptions | None):
            raise HarvestMisused(
                f"spark= takes SparkOptions, not {shorten(spark)}: the program's own SparkContext is used by itself"
            )
        self.settings = settings
        # What this process has counted, over all its leaderships.
        self.ledger = Ledger()
        self._election = election if election is not None else ElectionSettings()
        self._spark, self._policy, self._hook, self._draw = spark_of(spark), policy, hook, draw
        self._given_logger = logger
        self._metrics_seconds = metrics_seconds
        self._announcer = Announcer()
        self._state = State.CREATED
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self._stop_asked, self._kill_asked = Bell(), Bell()
        self._done = threading.Event()
        self._leadership: Leadership | None = None
        self._leading: _Leading | None = None
        self._last: Snapshot | None = None
        # When the harvest's own thread last looked around; None while it waits for a relay to end.
        self._looked: float | None = None
        # For the harvest's own thread: who is to lead, not before when, and for how long to stay away the next time.
        self._elected: UUID | None = None
        self._rest_until, self._penance = 0.0, _FIRST_PENANCE_SECONDS
        self._meter: Meter | None = None
        self._warm = False
        self._thread = threading.Thread(target=self._run, name="harvest", daemon=True)

    # What anybody may ask

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._state

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now."""
        return self.leader_id is not None

    @property
    def leader_id(self) -> UUID | None:
        """The id of the leadership that is held now; None for a standby."""
        leadership = self._leadership
        return None if leadership is None else leadership.leader_id

    @property
    def in_flight_records(self) -> int:
        """How many records were sent that are not committed yet, as of the shards' last beat."""
        return self._gauge("in_flight_rows")

    @property
    def in_flight_keys(self) -> int:
        """How many keys have such records, where the guarantee looks at keys."""
        return self._gauge("in_flight_keys")

    @property
    def relayed(self) -> int:
        """How many rows this process has relayed, over all its leaderships."""
        return sum(int(shard.get("relayed", 0)) for shard in self.ledger.shards().values())

    @property
    def role(self) -> Role:
        """What this process is for the relay at the moment."""
        match self._state:
            case State.STOPPED:
                return Role.STOPPED if self._error is None else Role.FAILED
            case State.STOPPING:
                return Role.STOPPING
            case _:
                leading = self._leading
                return Role.STANDBY if leading is None or leading.over else leading.relay.role

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what the relay here meets with a server."""
        leading = self._leading
        return None if leading is None else leading.relay.trouble

    def silent_seconds(self) -> dict[str, float]:
        """Return for how long each thread of the driver has owed an answer; infinite where it has died."""
        leading, looked = self._leading, self._looked
        silent = {} if leading is None else leading.relay.silent_seconds()
        if self._state is State.RUNNING and looked is not None:
            silent["harvest"] = time.monotonic() - looked if self._thread.is_alive() else math.inf
        return silent

    @property
    def term(self) -> str | None:
        """The term of the relay that runs here."""
        leading = self._leading
        return None if leading is None else leading.relay.term

    @property
    def alarms(self) -> dict[str, str]:
        """Topics whose rows wait, and why."""
        leading = self._leading
        return {} if leading is None else leading.relay.alarms

    @property
    def waiting_for(self) -> str | None:
        """What keeps a leader from taking over."""
        leading = self._leading
        return None if leading is None else leading.relay.waiting_for

    def snapshot(self) -> Snapshot | None:
        """Return how the shards stand, or stood when this process led last; None if it never did."""
        leading = self._leading
        return (None if leading is None else leading.relay.snapshot()) or self._last

    def on_event(self, handler: T) -> T:
        """Call the handler with every event from now on, in a thread of its own. Returns it: works as a decorator."""
        self._announcer.add(handler)
        return handler

    # What anybody may do

    def start(self) -> None:
        """Begin, and return at once. Raises `HarvestMisused` the second time, and what is wrong with the settings."""
        with self._lock:
            if self._state is not State.CREATED:
                raise HarvestMisused(f"a harvest is started once, and this one is {self._state}: make another")
            check_settings(self.settings)
            if self._spark.master is None:
                # A mistake in a name must not displace a relay that works.
                load(self.settings.transforms)
            self._state = State.RUNNING
            self._announcer.start()
            self._thread.start()

    def request_stop(self) -> None:
        """Ask for a stop in good order, and return at once. Safe in a signal handler, harmless in every state."""
        self._stop_asked.ring("stop")

    def kill(self) -> None:
        """End at once, finishing nothing. Safe in a signal handler. `wait` then raises `StopForced`."""
        self._kill_asked.ring("kill")
        self._stop_asked.ring("kill")

    def stop(self) -> None:
        """Stop in good order and return when nothing is left running. Harmless in every state; raises nothing."""
        with self._lock:
            if self._state is State.CREATED:
                self._state = State.STOPPED
                self._done.set()
                return
        self.request_stop()
        if threading.current_thread() not in {self._thread, self._announcer.thread}:
            self._done.wait()

    def wait(self, seconds: float | None = None) -> State:
        """Wait for the end, at most so long, and return the state. Raises what ended it."""
        if self._state is State.CREATED:
            raise HarvestMisused("the harvest was not started")
        if self._done.wait(seconds) and self._error is not None:
            raise self._error
        return self._state

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # What the body raised says more; without it, this is the only one to tell.
        if kind is None and self._error is not None:
            raise self._error

    # The harvest's own thread

    def _run(self) -> None:
        warm = WarmSpark(self._spark, name=self.settings.name, shards=self.settings.shards)
        with _logging_to(self._given_logger):
            try:
                warm.start()
                leadership = self._competitor()
                self._leadership = leadership
                leadership.start()
                ended_with: BaseException | None = None
                try:
                    self._compete(leadership, warm)
                finally:
                    self._state = State.STOPPING
                    ended_with = self._end_relay(
                        forced=self._kill_asked.rung, lost=lambda: leadership.leader_id is None
                    )
                    # Before Spark is ended, which takes its time: a successor need not wait for that.
                    leadership.stop()
                    self._announce_rest(leadership)
                if self._kill_asked.rung:
                    self._error = StopForced("stopped at once: open batches were not finished")
                elif _has_to_be_known(ended_with):
                    self._error = ended_with
            except BaseException as error:  # noqa: BLE001 - raised by `wait`
                self._error = error
            finally:
                warm.close(self._kill_asked)
                self._announcer.close(0 if self._kill_asked.rung else _EVENTS_SECONDS)
                self._state = State.STOPPED
                self._done.set()

    def _competitor(self) -> Leadership:
        if not isinstance(self._election, ElectionSettings):
            return self._election
        settings = self.settings
        return competitor(
            self._election, name=settings.name, dsn=settings.dsn, outbox=settings.outbox, kafka=settings.kafka
        )

    @property
    def _alone(self) -> bool:
        return isinstance(self._election, ElectionSettings) and self._election.kind is ElectionKind.NONE

    def _compete(self, leadership: Leadership, warm: WarmSpark) -> None:
        """Compete and relay until told to stop. Raises what ended it."""
        while not self._stop_asked.rung:
            self._looked = time.monotonic()
            change = leadership.wait(_LOOK_SECONDS)
            if change is not None:
                self._announce(change)
                self._follow(change)
            if warm.ready and not self._warm:
                self._warm = True
                _logger.info("Spark is ready for %s", self.settings.name)
            leading = self._leading
            if leading is None:
                # A standby without a Spark would be of no use as a leader.
                warm.check()
                if self._elected is not None and time.monotonic() >= self._rest_until:
                    self._leading = self._begin(leadership, self._elected, warm)
                    self._meter = Meter(self._metrics_seconds, lambda: self.relayed, time.monotonic())
            elif leading.over:
                self._conclude(leadership, leading)
            elif self._meter is not None and (reading := self._meter.due(time.monotonic())) is not None:
                _logger.debug("%s: %.0f rows a second, %d relayed", self.settings.name, reading.rate, reading.relayed)
                self._announcer.announce(reading)

    def _follow(self, change: Change) -> None:
        match change:
            case Acquired(leader_id=leader_id) | Refreshed(leader_id=leader_id):
                self._elected = leader_id
            case Revoked():
                self._elected = None
                self._end_relay(forced=False, seconds=_HAND_OVER_SECONDS)
            case Fenced():
                self._elected = None
                self.ledger.count("fences.election")
                self._end_relay(forced=True)

    def _conclude(self, leadership: Leadership, leading: "_Leading") -> None:
        """A relay has ended by itself: let another one try, or raise what it ended with."""
        self._end_relay(forced=False)
        if leading.error is not None and (self._alone or not isinstance(leading.error, Superseded)):
            raise leading.error
        if leadership.leader_id is not None:
            _logger.warning("superseded although it was elected: do all relays of this name use the same election?")
        if leading.lasted > _LONGEST_PENANCE_SECONDS:
            self._penance = _FIRST_PENANCE_SECONDS
        self._elected = None
        self._rest_until = time.monotonic() + self._penance
        self._penance = min(2 * self._penance, _LONGEST_PENANCE_SECONDS)
        leadership.resign()

    def _begin(self, leadership: Leadership, leader_id: UUID, warm: WarmSpark) -> "_Leading":
        first = [str(leader_id)]

        def term() -> str:
            # Another take-over within the same leadership, after a restore of the database, has an id of its own.
            return first.pop() if first else str(leadership.refresh() or uuid.uuid4())

        relay = Relay(
            self.settings,
            spark=self._spark,
            hook=self._hook,
            policy=self._policy,
            draw=self._draw,
            ledger=self.ledger,
            warm=warm,
            terms=term,
            wanted=lambda: leadership.leader_id is not None,
        )
        return _Leading(relay)

    def _end_relay(
        self, *, forced: bool, seconds: float | None = None, lost: Callable[[], bool] = lambda: False
    ) -> BaseException | None:
        """End the relay if one runs, and return what it ended with when nothing of it is left."""
        leading = self._leading
        if leading is None:
            return None
        self._looked = None
        leading.end(forced=forced, seconds=seconds, hurry=lambda: self._kill_asked.rung or lost())
        self._last = leading.relay.snapshot() or self._last
        self._leading = None
        return leading.error

    def _announce(self, change: Change) -> None:
        match change:
            case Acquired(leader_id=leader_id):
                _logger.info("leadership of %s acquired, as %s", self.settings.name, leader_id)
                self._announcer.announce(LeaderAcquired(leader_id=leader_id))
            case Refreshed(leader_id=leader_id):
                self._announcer.announce(LeaderRefreshed(leader_id=leader_id))
            case Revoked():
                _logger.info("leadership of %s given up", self.settings.name)
                self._announcer.announce(LeaderRevoked())
            case Fenced(reason=reason):
                _logger.warning("leadership of %s lost: %s", self.settings.name, reason)
                self._announcer.announce(LeaderFenced(reason=reason))

    def _announce_rest(self, leadership: Leadership) -> None:
        with contextlib.suppress(ThresherError):
            while (change := leadership.wait(0)) is not None:
                self._announce(change)

    def _gauge(self, name: str) -> int:
        leading = self._leading
        snapshot = None if leading is None else leading.relay.snapshot()
        return 0 if snapshot is None else int(sum(shard.gauges.get(name, 0) for shard in snapshot.shards))


class _Leading:
    """A relay that runs in a thread, for one leadership."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.error: BaseException | None = None
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as error:  # noqa: BLE001 - raised by whoever looks after it
            self.error = error

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return not self._thread.is_alive()

    @property
    def lasted(self) -> float:
        """For how long it has been there."""
        return time.monotonic() - self._began

    def end(self, *, forced: bool, seconds: float | None, hurry: Callable[[], bool]) -> None:
        """End it, in good order unless forced; by force after so long, or when there is no more time for that."""
        deadline = None if seconds is None else time.monotonic() + seconds
        if not forced:
            self.relay.request_stop()
        while not self.over:
            if forced or hurry() or (deadline is not None and time.monotonic() >= deadline):
                self.relay.abandon()
                self._thread.join()
                return
            self._thread.join(_LOOK_SECONDS)


def _has_to_be_known(error: BaseException | None) -> bool:
    """Whether somebody has to act on what a relay ended with, although it was asked to stop.

    Not on a successor's take-over, nor where there was no time left: then it has stopped, and the rest is theirs.
    """
    if error is None or isinstance(error, Superseded | StopForced):
        return False
    return not (isinstance(error, ThresherError) and error.retryable)


@contextlib.contextmanager
def _logging_to(logger: logging.Logger | None) -> Iterator[None]:
    """Have the caller's logger handle what Thresher logs meanwhile, and nobody else."""
    if logger is None:
        yield
        return
    ours = logging.getLogger("thresher")
    forward, level, propagate = _Forward(logger), ours.level, ours.propagate
    ours.addHandler(forward)
    ours.propagate = False
    if ours.level == logging.NOTSET:
        ours.setLevel(logger.getEffectiveLevel())
    try:
        yield
    finally:
        ours.removeHandler(forward)
        ours.setLevel(level)
        ours.propagate = propagate


class _Forward(logging.Handler):
    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if self._logger.isEnabledFor(record.levelno):
            self._logger.handle(record)
