"""One leadership: takes over, runs the shards on the engine under a watch, and ends with a reason.

1. An error of the take-over that time may mend is waited for; any other one ends the leadership at once.
2. The engine restarts shards that meet trouble. A shard that fails for good ends the leadership, with its error.
3. The watch ends a leadership that was superseded, even when it has nothing to do.
4. A term that went with a restore of the database is no reason to end: the leadership takes over again.

A crash of this process ends its shards; the next leader's take-over and the shards' own recovery do the rest.
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
from thresher.service.events.event import REFRESHED, Event, LeaderRefreshed
from thresher.service.health import Role, ShardHealth
from thresher.service.ledger import Ledger
from thresher.service.left_behind import LeftBehind, answer_of
from thresher.service.metrics import shard_health
from thresher.service.servers.reach import Reach
from thresher.service.take_over import TakeOver
from thresher.service.watching import Watching
from thresher.service.workload import Term, Workload
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.problem import EngineLost, ShardsFailed
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1


def spark_of(workload: Workload, options: SparkOptions | None) -> SparkOptions:
    """Return the options with the modules that the workload's workers are to find."""
    return replace(options or SparkOptions(), preload=workload.preload)


class Leading:
    """One leadership of one workload: `run` lasts as long as it does. Its questions may be asked from any thread."""

    def __init__(
        self,
        workload: Workload,
        *,
        spark: SparkOptions | None = None,
        draw: Callable[[], float] = random.random,
        ledger: Ledger | None = None,
        reach: Reach | None = None,
        warm: WarmSpark | None = None,
        terms: Callable[[], str] = lambda: str(uuid.uuid4()),
        wanted: Callable[[], bool] = lambda: True,
        announce: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self.workload = workload
        self._announce = announce
        # A process that leads several times hands the same one to all its leaderships.
        self.ledger = ledger or Ledger()
        self.reach = reach or Reach(workload.probes)
        self._spark, self._warm, self._draw = spark_of(workload, spark), warm, draw
        self._asked = threading.Event()
        self.take_over = TakeOver(workload, self.ledger, asked=self._asked, terms=terms, wanted=wanted, draw=draw)
        self._term: Term | None = None
        self._engine: Engine | None = None
        self._watching: Watching | None = None
        # The last error of each shard when it was last said to work.
        self._told: dict[int, str | None] = {}
        self._ended: Role | None = None

    @property
    def role(self) -> Role:
        """The role of this process at the moment."""
        if self._ended is not None:
            return self._ended
        if self._asked.is_set():
            return Role.STOPPING
        return Role.TAKING_OVER if self._watching is None else Role.LEADING

    @property
    def term(self) -> str | None:
        """The id of the term under which it leads, or led last."""
        return None if self._term is None else self._term.id

    @property
    def alarms(self) -> Mapping[str, str]:
        """Things that wait, and why."""
        return {} if self._term is None else self._term.alarms

    @property
    def waiting_for(self) -> str | None:
        """The reason why it cannot take over yet."""
        return self.take_over.waiting_for

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what keeps its watch from looking, or a shard from going on, if anything does."""
        watching = self._watching
        return None if watching is None else watching.trouble

    def shard_health(self) -> tuple[ShardHealth, ...]:
        """Return the facts about its shards; none before they were started."""
        snapshot = self.snapshot()
        return tuple(shard_health(each, self.workload.wording) for each in (snapshot.shards if snapshot else ()))

    def work_waits(self) -> bool | None:
        """Return whether there is anything to do; None before it has taken over. Raises `Trouble`; may take seconds."""
        return None if self._term is None else self._term.work_waits()

    def silent_seconds(self) -> dict[str, float]:
        """Return for how long each of its threads has owed an answer; infinite where it has died.

        A step of a shard counts as one if it hangs in the user's own code, since a restart helps against that.
        """
        engine, watching = self._engine, self._watching
        if self.role is not Role.LEADING or engine is None or watching is None:
            return {}
        # Its watch ends first when it ends.
        going_on = engine.snapshot().state in {EngineState.STARTING, EngineState.RUNNING}
        return {
            "engine": engine.silent_seconds(),
            "watch": math.inf if going_on and not watching.alive else 0.0,
            **{
                f"{each.step} of shard {each.shard}": math.inf
                for each in watching.stalls
                if each.step in self.workload.wording.own_steps
            },
        }

    def snapshot(self) -> Snapshot | None:
        """Return how the shards stand; None before they were started."""
        return None if self._engine is None else self._engine.snapshot()

    def request_stop(self) -> None:
        """Ask for a stop in good order. Safe in a signal handler, harmless when repeated."""
        self._asked.set()
        if self._engine is not None:
            self._engine.request_stop()

    def kill(self) -> None:
        """End at once. Safe in a signal handler; before there is an engine to end, it interrupts."""
        self._asked.set()
        if self._engine is None:
            raise KeyboardInterrupt
        self._engine.kill()

    def abandon(self) -> None:
        """End at once, finishing nothing: another process may lead already. Safe from any thread."""
        self._asked.set()
        if self._engine is not None:
            self._engine.kill()

    def run(self) -> Snapshot | None:
        """Take over and lead until told to stop. Raises what ended it; None if it was stopped before it began."""
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
            if term is None or self._asked.is_set():
                return None
            self.reach.all_succeeded()
            try:
                return self._lead(term)
            except Superseded:
                if not self._taken_back(term):
                    # Once, however many shards have found it out.
                    self.ledger.count("fences.term")
                    raise
                message = f"the term of this {self._label} is gone, and no other leads: it takes over again"
                logger.warning(message, extra=self._fields(term=term.id))

    def _lead(self, term: Term) -> Snapshot:
        """Run the shards for as long as the term lasts."""

        def observe(shard: int, event: str, fields: dict[str, Any]) -> None:
            # A late event of this engine is not the next term's.
            self._observe(term, engine, shard, event, fields)

        engine = Engine(term.pipeline, spark=self._spark, warm=self._warm, observer=observe, draw=self._draw)
        self._term, self._engine = term, engine
        engine.start()
        self.ledger.follow(engine.snapshot)
        if self._asked.is_set():
            engine.request_stop()
        watching = Watching(
            self.workload,
            term,
            engine,
            self.ledger,
            stopping=self._asked.is_set,
            reach=self.reach,
            announce=self._announce,
        )
        watching.start()
        self._watching = watching
        try:
            snapshot = engine.wait()
        except (EngineLost, ShardsFailed) as error:
            # The finding of the watch comes first. A superseded process must not be started again, although a Spark
            # that could not be stopped in good order says that it may.
            cause = error.__cause__
            raise watching.error or (cause if isinstance(cause, ThresherError) else error) from None
        finally:
            watching.end()
            self._watching = None
            self.ledger.close()
        if watching.error is not None:
            raise watching.error
        return snapshot

    def _taken_back(self, term: Term) -> bool:
        """Whether the term went with a restore of the database, rather than with a newer take-over."""
        while not self._asked.is_set():
            try:
                return answer_of(term.taken_back, unless=self._asked, name="taken-back")
            except LeftBehind:
                break
            except Trouble:
                self._asked.wait(_RETRY_SECONDS)
        return False

    def _observe(self, term: Term, engine: Engine, shard: int, event: str, fields: dict[str, Any]) -> None:
        """Take in an event of a shard. In the engine's observer thread."""
        doing = self.workload.wording.doing
        term.observe(shard, event, fields)
        if event == REFRESHED and self._ended is None:
            self._announce(LeaderRefreshed(leader_id=uuid.UUID(fields["leader_id"]), shard=shard))
        if event == doing:
            trouble = engine.snapshot().shards[shard].last_error
            if self._told.get(shard, "") != trouble:
                # Once for each trouble that it came back from.
                self._told[shard] = trouble
                message = f"shard %d is {doing}"
                logger.info(message, shard, extra=self._fields(shard=shard, **fields))

    @property
    def _label(self) -> str:
        return self.workload.wording.label

    def _fields(self, **fields: Any) -> dict[str, Any]:
        """Return what a line of the log is given for machines to read."""
        return {self._label: self.workload.name, **fields}
