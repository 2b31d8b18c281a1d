"""The relay as a whole, in the driver: takes over, runs its shards on the engine, watches, and ends with a reason.

1. What time may mend while starting is waited for; what somebody has to act on ends it at once.
2. The engine restarts shards that meet trouble. A shard that fails for good ends the relay, with its error.
3. The control row and the progress topic are looked at now and then: a relay that was superseded, or whose progress is
   gone, ends, even when it has nothing to do. One whose term is gone because the database was restored to before it
   takes over again: there is no other.
4. Progress older than the horizon is trimmed, by the broker's clock alone: by a wrong one, what a restored database
   needs would go.
"""

import contextlib
import logging
import math
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException

from thresher.core.errors import PipelineProblem, Superseded, ThresherError, Trouble
from thresher.db.outbox_store import StoreSession
from thresher.delivery.transforms import load
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import Tail
from thresher.relay.leader.progress_topic import known_topic
from thresher.relay.leader.take_over import take_over
from thresher.relay.names import progress_topic, sessions
from thresher.relay.settings import Mandate, Settings
from thresher.relay.shard.meter import count_error, kind_of
from thresher.relay.store import store_of
from thresher.service.health import Role
from thresher.service.ledger import Ledger
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.driver.supervision import Phase
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.problem import EngineLost, EngineProblem, ShardsFailed
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0
_TOPIC_SECONDS = 5.0
_TRIM_SECONDS = 60.0
_LONGEST_WAIT_SECONDS, _LOOK_SECONDS = 10.0, 0.1
# All that shards need.
_PRELOAD = ("thresher.relay.shard.lane", "thresher.delivery.transforms")
POLICY = Policy(back_off_most_seconds=5.0, healthy_seconds=10.0)


def spark_of(options: SparkOptions | None) -> SparkOptions:
    """Return the options with what a relay's workers are to find."""
    return replace(options or SparkOptions(), preload=_PRELOAD)


class Relay:
    """One leadership of one relay: `run` lasts as long as it does."""

    def __init__(
        self,
        settings: Settings,
        *,
        spark: SparkOptions | None = None,
        hook: str | None = None,
        policy: Policy | None = None,
        draw: Callable[[], float] = random.random,
        ledger: Ledger | None = None,
        warm: WarmSpark | None = None,
        terms: Callable[[], str] = lambda: str(uuid.uuid4()),
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings
        # A process that leads several times, with a relay for each, hands the same to all of them.
        self.ledger = ledger or Ledger()
        self._spark, self._warm = spark, warm
        # A term for each take-over that nobody has had before, and whether it is still ours to take.
        self._terms, self._wanted = terms, wanted
        self._hook = hook
        self._policy = policy or POLICY
        self._draw = draw
        self._asked = threading.Event()
        self._engine: Engine | None = None
        self._error: ThresherError | None = None
        # Topics whose rows wait, and why, by shard; replaced as a whole.
        self._held: dict[int, dict[str, str]] = {}
        self._told: dict[int, str | None] = {}
        self._warned = False
        self.term: str | None = None
        # What keeps it from taking over.
        self.waiting_for: str | None = None
        # What its watch meets with each of the two servers, by kind, while it lasts.
        self._troubles: dict[str, tuple[str, str]] = {}
        self._watcher: threading.Thread | None = None
        self._ended: Role | None = None

    @property
    def role(self) -> Role:
        """What this process is for the relay at the moment."""
        if self._ended is not None:
            return self._ended
        if self._asked.is_set():
            return Role.STOPPING
        return Role.TAKING_OVER if self._watcher is None else Role.LEADING

    @property
    def alarms(self) -> dict[str, str]:
        """Topics whose rows wait in one shard or more, and why."""
        return {topic: why for held in self._held.values() for topic, why in held.items()}

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what keeps its watch from looking, if anything does."""
        return next(iter(self._troubles.copy().values()), None)

    def silent_seconds(self) -> dict[str, float]:
        """Return for how long each of its threads has owed an answer; infinite where it has died."""
        engine, watcher = self._engine, self._watcher
        if self.role is not Role.LEADING or engine is None or watcher is None:
            return {}
        # Its watch ends first when it ends.
        going_on = engine.snapshot().state in {EngineState.STARTING, EngineState.RUNNING}
        return {
            "engine": engine.silent_seconds(),
            "watch": math.inf if going_on and not watcher.is_alive() else 0.0,
        }

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
        """End at once, finishing nothing: another one may lead already. Safe from any thread."""
        self._asked.set()
        if self._engine is not None:
            self._engine.kill()

    def run(self) -> Snapshot | None:
        """Take over and relay until told to stop. Raises what ended it; None if it was stopped before it began."""
        try:
            snapshot = self._run()
        except BaseException:
            self._ended = Role.FAILED
            raise
        self._ended = Role.STOPPED
        return snapshot

    def _run(self) -> Snapshot | None:
        if self._spark is None or self._spark.master is None:
            # A mistake in a name must not displace a relay that works.
            load(self.settings.transforms)
        while True:
            mandate = self._take_over()
            if mandate is None or self._asked.is_set():
                return None
            try:
                return self._lead(mandate)
            except Superseded:
                if not self._taken_back(mandate):
                    # Once, however many shards have found it out.
                    self.ledger.count("fences.term")
                    raise
                self._error = None
                logger.warning(
                    "the database was restored to before this relay took over: it takes over again",
                    extra=self._fields(term=mandate.term),
                )

    def _lead(self, mandate: Mandate) -> Snapshot:
        """Relay for as long as the leadership lasts."""
        self.term = mandate.term
        over = threading.Event()
        engine = Engine(
            self._pipeline(mandate),
            spark=spark_of(self._spark),
            warm=self._warm,
            observer=self._observe,
            draw=self._draw,
        )
        self._engine = engine
        engine.start()
        self.ledger.follow(engine.snapshot)
        if self._asked.is_set():
            engine.request_stop()
        watcher = threading.Thread(target=self._watch, args=(mandate, engine, over), name="relay-watch", daemon=True)
        watcher.start()
        self._watcher = watcher
        try:
            snapshot = engine.wait()
        except (EngineLost, ShardsFailed) as error:
            # What the watch found comes first: one that was superseded must not be started again, although the Spark
            # that it then could not stop in good order says that it may.
            cause = error.__cause__
            raise self._error or (cause if isinstance(cause, ThresherError) else error) from None
        finally:
            over.set()
            watcher.join(5.0)
            self._watcher = None
            self._troubles.clear()
            self.ledger.close()
        if self._error is not None:
            raise self._error
        return snapshot

    def _taken_back(self, mandate: Mandate) -> bool:
        """Whether our term went with a restore of the database, rather than with a newer relay's take-over."""
        settings = mandate.settings
        while not self._asked.is_set():
            try:
                application = f"{sessions(settings.name, mandate.term)}/r"
                with closing(store_of(settings).session(application)) as session:
                    since = session.incarnation().since
                    row = session.control.read(settings.name)
            except Trouble:
                self._asked.wait(_LOOK_SECONDS)
            else:
                return since != mandate.since and row is not None and row.term_time < mandate.term_time
        return False

    def snapshot(self) -> Snapshot | None:
        """Return how the shards stand; None before they were started."""
        return None if self._engine is None else self._engine.snapshot()

    def _pipeline(self, mandate: Mandate) -> Pipeline:
        config = {"mandate": replace(mandate, hook=self._hook)}
        steps = [Step(function="thresher.relay.shard.lane:read", config=config)]
        if mandate.settings.transforms:
            steps.append(Step(function="thresher.delivery.transforms:apply", config=config))
        steps.append(Step(function="thresher.relay.shard.lane:publish", config=config))
        return Pipeline(
            name=mandate.settings.name, shards=mandate.settings.shards, steps=tuple(steps), policy=self._policy
        )

    def _take_over(self) -> Mandate | None:
        """Take over, and wait for what time may mend; said once for each reason. None when it is not wanted."""
        wait = 0.2
        term = self._terms()
        while not self._asked.is_set():
            try:
                mandate = self._try(term)
            except ThresherError as error:
                count_error(self.ledger, error)
                if not error.retryable:
                    raise
                if str(error) != self.waiting_for:
                    logger.warning("the relay waits to take over: %s", error, extra=self._fields(kind=kind_of(error)))
                    self.waiting_for = str(error)
                self._asked.wait(wait * (0.5 + 0.5 * self._draw()))
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            else:
                if mandate is not None:
                    self.waiting_for = None
                    self.ledger.count("takeovers")
                    logger.info(
                        "the relay %s has taken over, with term %s",
                        self.settings.name,
                        mandate.term,
                        extra=self._fields(term=mandate.term),
                    )
                    return mandate
                self._asked.wait(_LOOK_SECONDS)
        return None

    def _try(self, term: str) -> Mandate | None:
        """Take over in a thread that may hang in a client: whoever asks for a stop meanwhile does not wait for it."""
        outcome: queue.SimpleQueue[Mandate | BaseException | None] = queue.SimpleQueue()

        def attempt() -> None:
            try:
                outcome.put(take_over(self.settings, term=term, wanted=self._is_wanted))
            except BaseException as error:  # noqa: BLE001 - raised again below
                outcome.put(error)

        threading.Thread(target=attempt, name="take-over", daemon=True).start()
        while not self._asked.is_set():
            with contextlib.suppress(queue.Empty):
                found = outcome.get(timeout=_LOOK_SECONDS)
                if isinstance(found, BaseException):
                    raise found
                return found
        return None

    def _is_wanted(self) -> bool:
        return self._wanted() and not self._asked.is_set()

    def _fields(self, **fields: Any) -> dict[str, Any]:
        """Return what a line of the log is given for machines to read."""
        return {"relay": self.settings.name, **fields}

    def _watch(self, mandate: Mandate, engine: Engine, over: threading.Event) -> None:
        """Look at the shards, at the control row and at the progress topic until the end."""
        try:
            self._look_on(mandate, engine, over)
        except Exception as error:
            # A relay that nobody watches could go on under another's term for ever.
            logger.exception("the relay's watch broke", extra=self._fields())
            count_error(self.ledger, error)
            broke = EngineProblem(f"the relay's watch broke, which is a bug: {type(error).__name__}: {error}")
            self._blame(broke, over)
            engine.request_stop()

    def _blame(self, error: ThresherError, over: threading.Event) -> None:
        """Keep why this leadership has to end; one that is over already has nothing to do with the next."""
        if not over.is_set():
            self._error = self._error or error

    def _look_on(self, mandate: Mandate, engine: Engine, over: threading.Event) -> None:
        trimmed = seen = time.monotonic()
        with contextlib.closing(_Watch(mandate)) as watch:
            while not over.wait(_WATCH_SECONDS) and not self._asked.is_set() and not engine.done:
                if any(shard.state is Phase.FAILED for shard in engine.snapshot().shards):
                    # One shard alone is no relay: whoever started it has to know.
                    engine.request_stop()
                    return
                try:
                    with self._noting("database"):
                        watch.look()
                    if time.monotonic() - seen > _TOPIC_SECONDS:
                        seen = time.monotonic()
                        with self._noting("broker"):
                            watch.look_at_topic()
                except Trouble:
                    continue
                except PipelineProblem as error:
                    count_error(self.ledger, error)
                    self._blame(error, over)
                    engine.request_stop()
                    return
                if time.monotonic() - trimmed > _TRIM_SECONDS:
                    trimmed = time.monotonic()
                    self._trim(mandate)

    @contextlib.contextmanager
    def _noting(self, server: str) -> Iterator[None]:
        """Note trouble with a server until a look at it succeeds."""
        try:
            yield
        except Trouble as error:
            count_error(self.ledger, error)
            self._troubles[server] = (kind_of(error), str(error))
            raise
        self._troubles.pop(server, None)

    def _trim(self, mandate: Mandate) -> None:
        """Remove progress that is older than the newest of its partition by the horizon."""
        settings = mandate.settings
        topic = progress_topic(settings.name)
        horizon = int(settings.limits.horizon_seconds * 1000)
        try:
            admin = Admin.of(settings.kafka)
            facts = admin.topic(topic)
            for partition in range(facts.partitions if facts is not None else 0):
                # The last one that is committed stays, however old: it may not be settled yet.
                with Tail(topic, partition, settings.kafka, fenced=False) as tail:
                    if tail.last() is None:
                        continue
                if tail.appended_ms is not None:
                    admin.trim(topic, {partition: tail.offset}, tail.appended_ms - horizon)
                elif not self._warned:
                    self._warned = True
                    logger.warning(
                        "%s grows, since its records do not carry the broker's time: set its message.timestamp.type "
                        "to LogAppendTime",
                        topic,
                    )
        except (KafkaException, ThresherError) as error:
            logger.debug("old progress was not trimmed: %s", error)

    def _observe(self, shard: int, name: str, fields: dict[str, Any]) -> None:
        told = self._fields(shard=shard, **fields)
        match name:
            case "held":
                for topic in fields["topics"]:
                    if topic not in self.alarms:
                        logger.warning("rows of topic %s wait: %s", topic, fields["why"], extra=told)
                held = dict.fromkeys(fields["topics"], str(fields["why"]))
                self._held = {**self._held, shard: {**self._held.get(shard, {}), **held}}
            case "lifted":
                if (topic := fields["topic"]) in self.alarms:
                    logger.info("rows of topic %s go on", topic, extra=told)
                # It is there for all of them: a shard without rows of it would never say so.
                self._held = {
                    each: {name: why for name, why in held.items() if name != topic}
                    for each, held in self._held.items()
                }
            case "dead":
                logger.warning(
                    "rows set aside: %d, the first is %d: %s",
                    fields["rows"],
                    fields["first"],
                    fields["why"],
                    extra=told,
                )
            case "relaying":
                # What the attempt before it held, nobody would lift: this one finds out by itself.
                self._held = {**self._held, shard: {}}
                engine = self._engine
                trouble = engine.snapshot().shards[shard].last_error if engine is not None else None
                if self._told.get(shard, "") != trouble:
                    # Once for each trouble that it came back from.
                    self._told[shard] = trouble
                    logger.info("shard %d is relaying", shard, extra=told)
            case _:
                logger.debug("shard %d: %s", shard, name)


class _Watch:
    """Looks at the control row, over a connection of its own that is made again when it is lost, and at the topic."""

    def __init__(self, mandate: Mandate) -> None:
        self._mandate = mandate
        self._session: StoreSession | None = None
        self._admin = Admin.of(mandate.settings.kafka)

    def look(self) -> None:
        """Raise `Superseded` if the term is not ours any more."""
        settings, term = self._mandate.settings, self._mandate.term
        try:
            if self._session is None:
                self._session = store_of(settings).session(f"{sessions(settings.name, term)}/w")
            row = self._session.control.read(settings.name)
        except PipelineProblem:
            self.close()
            raise
        if row is None or row.term != term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")

    def look_at_topic(self) -> None:
        """Raise `ForeignProgress` if the progress topic is gone, or is another one."""
        known_topic(self._admin, self._mandate.settings.name, self._mandate.progress_topic_id)

    def close(self) -> None:
        """Let go of the connection."""
        if self._session is not None:
            self._session.close()
        self._session = None
