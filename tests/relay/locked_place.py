"""An outbox whose topics are shared by locks, and workers on it, as threads of the test process."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, Producer
from psycopg.rows import dict_row

from tests.processes import eventually
from tests.relay.relaying import RELAYED_SECONDS, Place
from thresher.db.postgres.topic_locks import create_locks, locks_table
from thresher.db.topic_locks import LockState, LockTerms, TopicLock, TopicLocks
from thresher.delivery.crash_points import CrashPoint
from thresher.relay.settings import Coordination, Settings, TopicLocking
from thresher.relay.store import store_of
from thresher.relay.topic_lock.backend import DbBackend

HOOK = f"{__name__}:reached"
_LOCK = threading.Lock()
_SEEN: list[tuple[CrashPoint, list[int]]] = []
_HELD: dict[CrashPoint, "Hold"] = {}


def reached(point: CrashPoint, _: int, rows: list[int]) -> None:
    """Note a crash point; wait there if the test holds a worker at it."""
    with _LOCK:
        _SEEN.append((point, rows))
        hold = _HELD.get(point)
        if hold is not None and (rows or not hold.rows):
            del _HELD[point]
        else:
            hold = None
    if hold is not None:
        hold.arrived.set()
        assert hold.go.wait(60)


class Hold:
    """An order to hold a worker at a crash point until it is released."""

    def __init__(self, *, rows: bool = True) -> None:
        """`rows`: hold it there only with rows in flight."""
        self.rows = rows
        self.arrived, self.go = threading.Event(), threading.Event()


@contextmanager
def standing_at(point: CrashPoint, *, rows: bool = True) -> Iterator[Hold]:
    """Hold the next worker that reaches a crash point; leaving the context releases it."""
    hold = Hold(rows=rows)
    with _LOCK:
        _HELD[point] = hold
    try:
        yield hold
    finally:
        hold.go.set()
        with _LOCK:
            _HELD.pop(point, None)


def seen(point: CrashPoint) -> int:
    """Return how often a crash point was reached since the last `forget`."""
    with _LOCK:
        return sum(each is point for each, _ in _SEEN)


def forget() -> None:
    """Forget which crash points were reached."""
    with _LOCK:
        _SEEN.clear()
        _HELD.clear()


class Refusing:
    """A producer whose `init_transactions` fails while refusals are left."""

    left = 0

    def __init__(self, properties: dict[str, Any]) -> None:
        self._producer = Producer(properties)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def init_transactions(self, *arguments: Any) -> None:
        if Refusing.left > 0:
            Refusing.left -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "for a test"))
        self._producer.init_transactions(*arguments)


def refusing_first(properties: dict[str, Any]) -> Refusing:
    """Return a producer. The first ones cannot be initialised."""
    return Refusing(properties)


class LockedPlace(Place):
    """An outbox with a table of topic locks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        forget()
        Refusing.left = 0
        with psycopg.connect(self.dsn) as connection:
            create_locks(connection, self.table, self.shape)

    def locked_settings(self, **changes: Any) -> Settings:
        locking = {"rest_seconds": 0.05, **changes.pop("locking", {})}
        limits = {"batch_rows": 100, **changes.pop("limits", {})}
        return self.settings(
            coordination=Coordination.TOPIC_LOCK, topic_locking=TopicLocking(**locking), limits=limits, **changes
        )

    @contextmanager
    def backend(self, *, threads: int = 2, hook: str | None = None, **changes: Any) -> Iterator[DbBackend]:
        """Run workers; leaving stops them, and raises their error unless the test has looked at it."""
        backend = DbBackend(self.locked_settings(**changes), threads=threads, hook=hook)
        with backend:
            yield backend

    def topics(self, count: int, *, partitions: int = 2) -> list[str]:
        names = [f"{self.prefix}t{number}" for number in range(count)]
        for name in names:
            self.admin.create_topic(name, partitions=partitions)
        return names

    def until(self, backend: DbBackend, condition: Any, seconds: float = RELAYED_SECONDS) -> None:
        def met() -> object:
            if backend.error is not None:
                raise backend.error
            return condition()

        eventually(met, seconds, lambda: f"{self.pending()} rows wait: {dict(backend.counts)} {self.locks()}")

    def until_sent(self, backend: DbBackend, seconds: float = RELAYED_SECONDS) -> None:
        self.until(backend, lambda: self.pending() == 0, seconds)

    def locks(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the lock table, by name."""
        found = self.ask(f"SELECT * FROM {locks_table(self.table, self.shape)}", row_factory=dict_row)
        return {row["topic"]: row for row in found}

    def abandoned(self, seconds: float) -> set[tuple[str, int]]:
        """Return topic and token of the locks that have not been renewed for so long: their holders are gone."""
        locks = locks_table(self.table, self.shape)
        now = "pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())"
        held = f"locked_by IS NOT NULL AND locked_at < {now} - interval '{seconds} s'"
        return set(self.ask(f"SELECT topic, token FROM {locks} WHERE {held}"))

    def admin_end(self, topic: str) -> int:
        """Return how many offsets a topic has."""
        return sum(each.records for each in self.admin.topics(topic))

    @contextmanager
    def locking(self, **changes: Any) -> Iterator[TopicLocks]:
        """Yield the locks, over a session of the test itself."""
        with closing(store_of(self.locked_settings(**changes)).session("tests", locate=True)) as session:
            session.create_tables()
            yield session.topic_locks()

    def take(self, locks: TopicLocks, topic: str, *, owner: str = "test", seconds: float = 60.0) -> TopicLock | None:
        """Take a topic's lock as a worker does, under the term of the control row."""
        ((term,),) = self.sql("SELECT term::text FROM thresher_relay")
        terms = LockTerms(owner=owner, relay=self.settings().name, term=term, seconds=seconds)
        return locks.acquire(LockState(topic=topic), terms)
