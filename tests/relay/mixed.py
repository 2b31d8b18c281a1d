"""A random soak: faults of every kind, by a schedule, against a relay under load; judged by what readers got.

Besides the load, transactions of its own go through the outbox: bad rows, large ones, rows for topics that are missing,
rows that commit very late. All are in the same history. What is dead in the end must be what had to die.
"""

import contextlib
import heapq
import itertools
import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from tests.processes import command_line, descendants, eventually, parent
from tests.relay.crashing import NAME, TOPIC, CrashRun
from tests.relay.guarded import LOGIN, Guard, guarded
from tests.relay.mixing import Fault, api_of
from thresher.core.errors import ThresherError
from thresher.db import TableName
from thresher.devstack.broker import KafkaOptions
from thresher.kafka.admin import Admin, look
from thresher.relay.settings import Delivery
from thresher.spark.process import Process
from thresher.spark.process import look as look_at
from thresher.testing.checker import Verdict, check
from thresher.testing.history import IDENTITY_HEADER, HistoryWriter, Outcome, identity, read_history
from thresher.testing.proxy import Action, Cut, Delay, Drop, Hold
from thresher.testing.pump import Tally
from thresher.testing.reading import read_topics, rows_held

WIDE, OTHER = f"{NAME}.wide", f"{NAME}.other"
LOWERED_BYTES, LARGE_BYTES = 20_000, 30_000
# Longer than a fault and what it leads to may last.
AFTERMATH_SECONDS = 90.0
TOO_MANY_RELAYS = 3
SPARK_LOST, SUPERSEDED, REFUSED = 1, 3, 4
# So long without a row that moves, and no further fault comes; so long, and something is wrong.
STILL_SECONDS, STUCK_SECONDS = 15.0, 180.0
_INSERT = (
    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_partition, kafka_header_keys, kafka_header_values)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A row of our own, beside the load."""

    topic: str = TOPIC
    key: str | None = None
    value: bytes = b"extra"
    partition: int | None = None
    # It can never be sent; it may or may not, depending on when it is tried.
    bad: bool = False
    doubtful: bool = False


@dataclass
class Outline:
    """What the run did, for the last line."""

    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    unreached: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Movement:
    """When rows were last seen to leave the outbox."""

    moved: float = 0.0
    waiting: int = 0
    _looked: float = 0.0
    _last: int = 0
    _before: int = 0

    def look(self, now: float, counted: Callable[[int], tuple[int, int, int] | None]) -> None:
        if now - self._looked < 1.0 or (found := counted(self._last)) is None:
            return
        self._looked = now
        self.waiting, left, highest = found
        if left < self._before or not self.waiting:
            self.moved = now
        self._last, self._before = highest, self.waiting

    def still(self, now: float) -> float:
        return now - self.moved


class Relayed:
    """A relay's process, and what was done to it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        # Until when an exit code is no wonder.
        self.excused: dict[int, float] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    def excuse(self, code: int) -> None:
        self.excused[code] = time.monotonic() + AFTERMATH_SECONDS

    def jvms(self) -> list[int]:
        return [pid for pid in self._below() if b"org.apache.spark.deploy.SparkSubmit" in command_line(pid)]

    def daemons(self) -> list[int]:
        jvms = set(self.jvms())
        return [pid for pid in self._pythons() if _parent(pid) in jvms]

    def workers(self) -> list[int]:
        daemons = set(self.daemons())
        return [pid for pid in self._pythons() if _parent(pid) in daemons]

    def everything(self) -> list[int]:
        return [self.pid, *self._below()]

    def _below(self) -> list[int]:
        return sorted(descendants(self.pid))

    def _pythons(self) -> list[int]:
        return [pid for pid in self._below() if b"python" in command_line(pid).split(b"\0")[0]]


class MixedRun(CrashRun):
    """A stack with an authorizer, a load, and a relay that is never left alone. A context manager."""

    def __init__(
        self,
        *,
        rate: float = 400.0,
        delivery: Delivery = Delivery.EXACTLY_ONCE,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(rate=rate, delivery=delivery)
        # Who is stopped here is taken for dead, as everywhere.
        self.policy = {}
        self.outline = Outline()
        self._tell = tell
        self._began = time.monotonic()
        self._relays: list[Relayed] = []
        self._shards = 4
        self._due: list[tuple[float, int, str, Callable[[], None]]] = []
        self._places = itertools.count()
        self._numbers, self._transactions, self._topics = itertools.count(), itertools.count(), itertools.count()
        self._extras: dict[str, Extra] = {}
        self._missing: list[str] = []
        self._excused: dict[int, float] = {}

    def broker(self, port: int) -> KafkaOptions:
        return guarded(port)

    def __enter__(self) -> "MixedRun":
        super().__enter__()
        try:
            # What cannot be done at once, since the broker is down, comes later.
            self._guard = Guard(self.stack.kafka.bootstrap, patience_seconds=5.0)
            self._guard.admit(NAME)
            self._admin = Admin(self.stack.kafka.bootstrap)
            self._admin.create_topic(WIDE, partitions=2)
            self._admin.create_topic(OTHER, partitions=2)
            self._extra_history = HistoryWriter(self.history, "extra")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for relayed in self._relays:
            for pid in relayed.everything() if relayed.process.poll() is None else ():
                _signal(pid, signal.SIGKILL)
            relayed.process.wait()
        self.process = None
        super().__exit__()

    # The course of it

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Do the faults when they are due, keep a relay running, and end after so many seconds, healed.

        Where rows have not moved for long, the schedule's clock stands until they do: a relay that is only ever broken
        while it starts shows nothing. If they do not within a bound, although no fault comes, that is wrong.
        """
        self._began = time.monotonic()
        self._begin_relay()
        coming = list(faults)
        clock = told = last = 0.0
        movement = Movement()
        while (now := self._now()) < seconds:
            self._do_due(now)
            self._look_after()
            movement.look(now, self._counted)
            clock += 0.0 if movement.still(now) > STILL_SECONDS else now - last
            last = now
            while coming and coming[0].at <= clock:
                self._do(coming.pop(0))
            if movement.still(now) > STUCK_SECONDS:
                self.outline.wrong.append(f"at {now:.1f} s no row had moved for {STUCK_SECONDS:g} s: {self.said()}")
                movement = Movement(moved=now)
            if now - told >= 10:
                told = now
                self._tell(f"{now:7.1f} s  {movement.waiting} rows wait, {len(self._alive())} relays")
            time.sleep(0.1)
        self.outline.unreached = len(coming)
        self._heal()

    def verdict(self, seconds: float = 240.0, *, everything: bool = False) -> tuple[Verdict, Tally]:
        """End the load, let everything arrive, stop the relay, and judge."""
        tally = self._end_load()
        with psycopg.connect(self.dsn, autocommit=True) as connection:

            def drained() -> bool:
                self._look_after()
                return connection.execute("SELECT FROM outbox LIMIT 1").fetchone() is None

            eventually(drained, seconds, lambda: f"{self._counted(0)} rows are left: {self.said()}")
            current = self._relays[-1]
            older = self._relays[:-1]
            eventually(lambda: not any(each in self._alive() for each in older), 60, lambda: "older relays go on")
            self._look_after()
            current.process.terminate()
            if (code := current.process.wait(60)) != 0:
                self.outline.wrong.append(f"stopped in good order, the relay ended with {code}")
            held = rows_held(connection, TableName(table="outbox"))
        reads = read_topics(self.stack.kafka.bootstrap, [TOPIC, WIDE, OTHER, *self._missing], uncommitted=everything)
        transactions = read_history(self.history)
        committed = {name for each in transactions if each.outcome is Outcome.COMMITTED for name in each.identities()}
        self._judge_dead(held.dead, committed)
        return check(transactions, reads, dead=held.dead, pending=held.pending, repeats_allowed=everything), tally

    def _judge_dead(self, dead: frozenset[str], committed: set[str]) -> None:
        bad = {name for name, extra in self._extras.items() if extra.bad}
        doubtful = {name for name, extra in self._extras.items() if extra.doubtful}
        for name in sorted(dead - bad - doubtful)[:20]:
            self.outline.wrong.append(f"{name} is dead, and had no reason to be: {self._extras.get(name)}")
        for name in sorted((bad & committed) - dead)[:20]:
            self.outline.wrong.append(f"{name} should be dead: {self._extras[name]}")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _counted(self, last: int) -> tuple[int, int, int] | None:
        """Return how many rows there are, how many of them up to an id, and the highest id."""
        try:
            with self._connect() as connection:
                return connection.execute(
                    "SELECT count(*), count(*) FILTER (WHERE id <= %s), coalesce(max(id), 0) FROM outbox", [last]
                ).fetchone()
        except psycopg.Error:
            return None

    def _later(self, seconds: float, what: str, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._now() + seconds, next(self._places), what, action))

    def _do_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, what, action = heapq.heappop(self._due)
            try:
                action()
            except (psycopg.Error, KafkaException, ThresherError) as error:
                # What heals has to happen: a server that is down just now will be back.
                self._tell(f"{self._now():7.1f} s  {what} comes later: {error}")
                self._later(2.0, what, action)

    def _heal(self) -> None:
        deadline = time.monotonic() + 120
        while self._due:
            assert time.monotonic() < deadline, f"not healed: {[what for _, _, what, _ in self._due]}"
            self._do_due(self._due[0][0])
        if not self.stack.postgres.server.running:
            self.stack.postgres.start()
        self._look_after()
        eventually(lambda: look(self.stack.kafka.bootstrap) is not None, 60, self.stack.kafka.nodes[1].tail)

    def _do(self, fault: Fault) -> None:
        self._tell(fault.line())
        try:
            done = getattr(self, f"_{fault.kind.replace('-', '_')}")(**fault.parameters)
        except (psycopg.Error, KafkaException, ThresherError) as error:
            self._tell(f"{self._now():7.1f} s  {fault.kind} could not be done: {str(error).strip()}")
            done = False
        (self.outline.missed if done is False else self.outline.faults).update([fault.kind])

    # Relays

    def _begin_relay(self) -> Relayed:
        begun = Relayed(self.start(hook=False, shards=self._shards, kafka=LOGIN))
        begun.excused.update(self._excused)
        for older in self._alive():
            # Whichever takes over last supersedes the others, and that need not be the one that was started last.
            older.excused[SUPERSEDED] = begun.excused[SUPERSEDED] = math.inf
        self._relays.append(begun)
        return begun

    def _alive(self) -> list[Relayed]:
        return [each for each in self._relays if each.process.poll() is None]

    def _look_after(self) -> None:
        """See with what relays have ended, and keep the newest running; the broker too."""
        now = time.monotonic()
        for relayed in [each for each in self._relays if each.process.poll() is not None]:
            code = relayed.process.returncode
            newest = relayed is self._relays[-1]
            self._relays.remove(relayed)
            self.outline.exits.update([code])
            if relayed.excused.get(code, 0.0) < now:
                self.outline.wrong.append(f"at {self._now():.1f} s a relay ended with {code}: {self.said()}")
            if newest:
                self._begin_relay()
        broker = self.stack.kafka.nodes[1]
        if not broker.running and not any(what == "broker start" for _, _, what, _ in self._due):
            self._tell(f"{self._now():7.1f} s  the broker did not start: {broker.tail(3)}")
            self.stack.kafka.start_node(1, wait=False)

    @property
    def _current(self) -> Relayed:
        return self._relays[-1]

    def _end(self, pids: Iterable[int]) -> bool:
        return sum(_signal(pid, signal.SIGKILL) for pid in pids) > 0

    def _pause(self, pids: Iterable[int], seconds: float) -> bool:
        found = [process for pid in pids if (process := look_at(pid)) is not None]
        for process in found:
            _signal(process.pid, signal.SIGSTOP)
        self._later(seconds, "go on", lambda: _resume(found))
        return bool(found)

    def _kill_worker(self, which: int) -> bool:
        return self._end(_chosen(self._current.workers(), which))

    def _kill_daemon(self) -> bool:
        return self._end(self._current.daemons())

    def _kill_driver(self) -> bool:
        self._current.excuse(-signal.SIGKILL)
        return self._end([self._current.pid])

    def _kill_jvm(self) -> bool:
        self._current.excuse(SPARK_LOST)
        return self._end(self._current.jvms())

    def _pause_worker(self, which: int, seconds: float) -> bool:
        return self._pause(_chosen(self._current.workers(), which), seconds)

    def _pause_driver(self, seconds: float) -> bool:
        return self._pause([self._current.pid], seconds)

    def _pause_jvm(self, seconds: float) -> bool:
        return self._pause(self._current.jvms(), seconds)

    def _newcomer(self, shards: int, older: str, seconds: float) -> bool:
        if len(self._alive()) >= TOO_MANY_RELAYS:
            return False
        if older == "stopped":
            self._pause(self._current.everything(), seconds)
        self._shards = shards
        self._begin_relay()
        return True

    def _restart(self, shards: int, how: str) -> None:
        self._shards = shards
        self._current.excuse(0 if how == "term" else -signal.SIGKILL)
        self._current.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)

    # The database

    def _end_sessions(self, rows: int) -> None:
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True, connect_timeout=2) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE application_name LIKE 'thresher/%%' ORDER BY random() LIMIT %s) AS chosen",
                [rows],
            )

    def _postgres(self, end: Callable[[], None], seconds: float) -> bool:
        if not self.stack.postgres.server.running:
            return False
        end()
        self._later(seconds, "postgres start", self._start_postgres)
        return True

    def _start_postgres(self) -> None:
        if not self.stack.postgres.server.running:
            self.stack.postgres.start()

    def _postgres_fast(self, seconds: float) -> bool:
        return self._postgres(self.stack.postgres.server.stop, seconds)

    def _postgres_immediate(self, seconds: float) -> bool:
        return self._postgres(self.stack.postgres.server.end, seconds)

    def _postgres_kill(self, seconds: float) -> bool:
        return self._postgres(self.stack.postgres.server.kill, seconds)

    def _connect(self) -> psycopg.Connection[Any]:
        # A lock may be our own, to be released by the one who waits for it here.
        return psycopg.connect(self.dsn, connect_timeout=2, options="-c lock_timeout=1s")

    def _table_locked(self, seconds: float) -> None:
        connection = self._connect()
        try:
            connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        except psycopg.Error:
            connection.close()
            raise
        self._later(seconds, "unlock", connection.close)

    def _long_transaction(self, seconds: float) -> None:
        """A row that commits late, in a transaction that holds back the database's horizon."""
        connection = self._connect()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        finish = self._insert(connection, [Extra(key=f"late-{next(self._numbers)}", topic=OTHER)])
        self._later(seconds, "late commit", finish)

    # The broker

    def _broker(self, end: Callable[[], None], seconds: float) -> bool:
        if not self.stack.kafka.nodes[1].running:
            return False
        end()
        self._later(seconds, "broker start", self._start_broker)
        return True

    def _start_broker(self) -> None:
        if not self.stack.kafka.nodes[1].running:
            self.stack.kafka.start_node(1, wait=False)

    def _broker_kill(self, seconds: float) -> bool:
        return self._broker(self.stack.kafka.nodes[1].kill, seconds)

    def _broker_stop(self, seconds: float) -> bool:
        return self._broker(self.stack.kafka.nodes[1].stop, seconds)

    def _broker_pause(self, seconds: float) -> bool:
        broker = self.stack.kafka.nodes[1]
        return broker.running and self._pause([broker.pid], seconds)

    def _wire(self, api: str, side: str, verdict: str, seconds: float, times: int) -> None:
        verdicts: dict[str, Action] = {"cut": Cut(), "drop": Drop(), "delay": Delay(seconds=seconds), "hold": Hold()}
        rule = (self.proxy.on_request if side == "request" else self.proxy.on_answer)(
            api_of(api), verdicts[verdict], times=times
        )
        self._later(seconds if verdict == "hold" else 20.0, "wire", rule.release)

    def _wire_cut_all(self) -> None:
        self.proxy.cut_all()

    def _wire_pause(self, seconds: float) -> None:
        self.proxy.pause()
        self._later(seconds, "wire", self.proxy.resume)

    def _raise_partitions(self) -> None:
        """A key would move to another partition: so these rows have none, and some ask for the newest."""
        found = self._admin.topic(WIDE)
        assert found is not None
        self._admin.widen_topic(WIDE, found.partitions + 1)
        self._stash(Extra(topic=WIDE, partition=place) for place in (None, 0, found.partitions, None))

    def _topic_denied(self, seconds: float) -> None:
        self._guard.deny_topic(TOPIC)
        self._later(seconds, "allow", lambda: self._guard.allow_topic(TOPIC))

    def _other_topic_denied(self, seconds: float) -> None:
        self._guard.deny_topic(OTHER)
        self._later(seconds, "allow", lambda: self._guard.allow_topic(OTHER))
        self._stash(Extra(topic=OTHER, key=f"key-{number}") for number in range(5))

    def _producer_denied(self, seconds: float) -> None:
        self._guard.deny_producers(f"{NAME}-")
        self._later(seconds, "allow", lambda: self._guard.allow_producers(f"{NAME}-"))
        # Whoever is started meanwhile will be refused as well.
        self._excused[REFUSED] = time.monotonic() + AFTERMATH_SECONDS
        for relayed in self._relays:
            relayed.excuse(REFUSED)

    def _limit_lowered(self, seconds: float) -> None:
        self._guard.limit(TOPIC, LOWERED_BYTES)
        self._later(seconds, "limit", lambda: self._guard.limit(TOPIC, None))
        self._stash(
            Extra(key=f"key-{number}", value=os.urandom(LARGE_BYTES), doubtful=True) if number % 2 else
            Extra(key=f"key-{number}") for number in range(6)
        )  # fmt: skip

    def _topic_missing(self, seconds: float) -> None:
        name = f"{NAME}.missing-{next(self._topics)}"
        self._missing.append(name)
        self._later(seconds, f"create {name}", lambda: self._create(name))
        self._stash(Extra(topic=name, key=f"key-{number % 4}") for number in range(20))

    # Rows

    def _bad_rows(self, rows: int) -> None:
        kinds = [
            Extra(topic="not a topic", bad=True),
            Extra(partition=99, bad=True),
            Extra(value=bytes(1_100_000), bad=True),
            Extra(topic="..", bad=True),
        ]
        for number in range(rows):
            kind = kinds[number % len(kinds)]
            good = Extra(key=f"key-{number:x}")
            self._stash(
                [
                    good,
                    Extra(topic=kind.topic, key=good.key, value=kind.value, partition=kind.partition, bad=True),
                    good,
                ]
            )

    def _large_rows(self, rows: int) -> None:
        self._stash(
            Extra(key=f"key-{number:x}", value=os.urandom(LARGE_BYTES), doubtful=True) for number in range(rows)
        )

    def _stash(self, extras: Iterable[Extra]) -> None:
        self._insert(self._connect(), list(extras))()

    def _insert(self, connection: psycopg.Connection[Any], extras: list[Extra]) -> Callable[[], None]:
        """Insert rows, and return what commits them and notes the outcome."""
        number = next(self._transactions)
        named = [(next(self._numbers), extra) for extra in extras]
        self._extras.update({identity("extra", 0, row): extra for row, extra in named})
        rows = [(row, extra.key) for row, extra in named]
        self._extra_history.begin(0, number, time.monotonic_ns(), rows)

        def note(outcome: Outcome) -> None:
            connection.close()
            self._extra_history.end(0, number, time.monotonic_ns(), outcome)

        def commit() -> None:
            try:
                connection.commit()
            except psycopg.Error:
                # Lost before or during: a look at what became of it is not worth the trouble.
                note(Outcome.UNKNOWN)
            else:
                note(Outcome.COMMITTED)

        try:
            for row, extra in named:
                mark = identity("extra", 0, row).encode()
                key = None if extra.key is None else extra.key.encode()
                connection.execute(_INSERT, [extra.topic, key, extra.value, extra.partition, [IDENTITY_HEADER], [mark]])
        except psycopg.Error:
            note(Outcome.ROLLED_BACK)
            raise
        return commit

    # Administration

    def _create(self, name: str) -> None:
        if self._admin.topic(name) is None:
            self._admin.create_topic(name, partitions=2)


def _chosen(pids: list[int], which: int) -> list[int]:
    return [pids[which % len(pids)]] if pids else []


def _signal(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _resume(processes: Iterable[Process]) -> None:
    for process in processes:
        if process.alive:
            _signal(process.pid, signal.SIGCONT)


def _parent(pid: int) -> int:
    try:
        return parent(pid)
    except OSError:
        return 0


def summary(outline: Outline, verdict: Verdict) -> Mapping[str, Any]:
    """Return the figures of a run."""
    return {
        "faults": dict(sorted(outline.faults.items())),
        "missed": dict(sorted(outline.missed.items())),
        "unreached": outline.unreached,
        "exits": {str(code): count for code, count in sorted(outline.exits.items())},
        "verdict": {
            name: getattr(verdict, name)
            for name in (
                "committed",
                "rolled_back",
                "unknown",
                "read",
                "dead",
                "lost",
                "phantom",
                "duplicated",
                "reordered",
            )
        },
        "wrong": outline.wrong,
    }
